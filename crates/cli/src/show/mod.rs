//! `natrix show`.

mod drops;
pub(crate) mod rows;
mod status;

use std::io::Write;

use control::Alg;
use control::Counter;
use control::Counters;
use control::Expectation;
use control::Fault;
use control::Filter;
use control::Grant;
use control::Interface;
use control::List;
use control::Mapping;
use control::Neighbour;
use control::Pool;
use control::PoolAddress;
use control::Request;
use control::Route;
use control::Rule;
use control::Session;
use control::Subscriber;

use crate::arguments::Output;
use crate::error::CliError;
use crate::execute::connect;
use crate::execute::connect_for;
use crate::output::Row;
use crate::output::print_all;
use crate::output::print_pages;
use crate::show_arguments::Case;
use crate::show_arguments::EndpointFilters;
use crate::show_arguments::Paging;
use crate::show_arguments::Show;
use crate::show_arguments::ShowCounters;
use crate::show_arguments::ShowPools;

/// Runs one `show`.
pub(crate) fn run(show: &Show, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    match show {
        Show::Status(arguments) => status::show(arguments, out),
        Show::Drops(arguments) => drops::show(arguments, out),
        Show::Counters(arguments) => counters(arguments, out),
        Show::Pools(arguments) => pools(arguments, out, notes),
        Show::Interfaces(arguments) => {
            let (mut interfaces, _) = connect(&arguments.output.socket)?.request::<Interface>(&Request::Interfaces)?;
            interfaces.truncate(arguments.limit.unwrap_or(usize::MAX));
            Ok(print_all(&interfaces, arguments.output.json, out)?)
        }
        Show::Subscribers(arguments) => {
            let filter = Filter {
                internal: arguments.internal,
                external: arguments.external,
                pool: arguments.owner.pool.clone(),
                vrf: arguments.owner.vrf.clone(),
                worker: arguments.owner.worker,
                host: arguments.owner.host,
                ..Filter::default()
            };
            print_lookup::<Subscriber>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Subscribers,
                out,
                notes,
            )
        }
        Show::Mappings(arguments) => {
            let filter = filter_of(&arguments.endpoints);
            print_lookup::<Mapping>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Mappings,
                out,
                notes,
            )
        }
        Show::Grants(arguments) => {
            let filter = filter_of(&arguments.endpoints);
            print_lookup::<Grant>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Grants,
                out,
                notes,
            )
        }
        Show::Algs(arguments) => {
            let filter = Filter { alg: arguments.alg.clone(), worker: arguments.worker, ..Filter::default() };
            print_list::<Alg>(&arguments.output, filter, &arguments.paging, Request::Algs, out, notes)
        }
        Show::Expectations(arguments) => {
            let filter = Filter { alg: arguments.alg.clone(), ..filter_of(&arguments.endpoints) };
            print_lookup::<Expectation>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Expectations,
                out,
                notes,
            )
        }
        Show::Sessions(arguments) => {
            let mut filter = filter_of(&arguments.endpoints);
            filter.remote = arguments.remote.and_then(|remote| remote.prefix);
            filter.remote_port = arguments.remote.and_then(|remote| remote.port);
            filter.state.clone_from(&arguments.state);
            print_lookup::<Session>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Sessions,
                out,
                notes,
            )
        }
        Show::Routes(arguments) => {
            let filter = Filter {
                address: arguments.address,
                interface: arguments.interface.clone(),
                source: arguments.source,
                side: arguments.side,
                vrf: arguments.vrf.clone(),
                ..Filter::default()
            };
            print_list::<Route>(&arguments.output, filter, &arguments.paging, Request::Routes, out, notes)
        }
        Show::Neighbours(arguments) => {
            let filter = Filter {
                address: arguments.address,
                interface: arguments.interface.clone(),
                worker: arguments.worker,
                ..Filter::default()
            };
            print_lookup::<Neighbour>(
                (&arguments.output, &arguments.case),
                filter,
                &arguments.paging,
                Request::Neighbours,
                out,
                notes,
            )
        }
        Show::Rules(arguments) => {
            print_list::<Rule>(&arguments.output, Filter::default(), &arguments.paging, Request::Rules, out, notes)
        }
    }
}

/// A list of no subscribers.
fn print_list<T: Row>(
    output: &Output,
    filter: Filter,
    paging: &Paging,
    page: fn(List) -> Request,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    print_lookup::<T>((output, &Case::default()), filter, paging, page, out, notes)
}

fn print_lookup<T: Row>(
    (output, case): (&Output, &Case),
    filter: Filter,
    paging: &Paging,
    page: fn(List) -> Request,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    let request = |limit, cursor| page(List { filter: filter.clone(), limit, cursor });
    print_pages::<T>(&mut connect_for(&output.socket, case.case.clone())?, paging, request, output.json, out, notes)
}

fn filter_of(endpoints: &EndpointFilters) -> Filter {
    Filter {
        protocol: endpoints.protocol,
        internal: endpoints.internal.and_then(|internal| internal.prefix),
        internal_port: endpoints.internal.and_then(|internal| internal.port),
        external: endpoints.external.and_then(|external| external.prefix),
        external_port: endpoints.external.and_then(|external| external.port),
        port: endpoints.port,
        pool: endpoints.owner.pool.clone(),
        vrf: endpoints.owner.vrf.clone(),
        worker: endpoints.owner.worker,
        host: endpoints.owner.host,
        ..Filter::default()
    }
}

fn pools(arguments: &ShowPools, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    if arguments.addresses {
        let filter = Filter { pool: arguments.pool.clone(), external: arguments.external, ..Filter::default() };
        let page = Request::PoolAddresses;
        return print_list::<PoolAddress>(&arguments.output, filter, &arguments.paging, page, out, notes);
    }
    let (mut pools, _) = connect(&arguments.output.socket)?.request::<Pool>(&Request::Pools)?;
    if let Some(name) = &arguments.pool {
        let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        if !known.contains(&name.as_str()) {
            let remedy = format!("use one of: {}", known.join(", "));
            return Err(Fault::new(format!("pool \"{name}\""), "does not exist", remedy).into());
        }
        pools.retain(|pool| pool.name == *name);
    }
    if !arguments.paging.all {
        pools.truncate(usize::try_from(arguments.paging.limit).unwrap_or(usize::MAX));
    }
    Ok(print_all(&pools, arguments.output.json, out)?)
}

fn counters(arguments: &ShowCounters, out: &mut dyn Write) -> Result<(), CliError> {
    let request = Request::Counters(Counters { per_worker: arguments.per_worker });
    let (mut counters, _) = connect(&arguments.output.socket)?.request::<Counter>(&request)?;
    counters.retain(|counter| {
        let named = arguments.name.as_ref().is_none_or(|part| counter.name.contains(part.as_str()));
        named && (arguments.all || counter.value > 0)
    });
    counters.truncate(arguments.limit.unwrap_or(usize::MAX));
    Ok(print_all(&counters, arguments.output.json, out)?)
}
