//! `natrix plan` and `natrix reload`.

use std::io;
use std::io::Write;
use std::path::absolute;
use std::time::Duration;

use control::Change;
use control::Client;
use control::ClientError;
use control::Fault;
use control::Plan;
use control::PlanDetail;
use control::PlanRules;
use control::PoolPlan;
use control::Reloaded;
use control::Reply;
use control::Request;
use control::Unnamed;

use crate::arguments::NewConfig;
use crate::arguments::PlanArguments;
use crate::error::CliError;
use crate::execute::connect;
use crate::human;
use crate::output::Row;
use crate::output::json_line;
use crate::output::print_all;
use crate::table::Align;
use crate::table::Align::Left;
use crate::table::Align::Right;
use crate::table::Table;

/// A plan looks through all tables, a piece at a time; a reload compiles a whole configuration.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(300);
/// What a daemon names at most of each kind.
const DETAILS_MAX: u32 = 10_000;

impl Row for Change {
    const COLUMNS: &'static [(&'static str, Align)] =
        &[("WHAT", Left), ("NOW", Left), ("THEN", Left), ("LIVE", Left), ("", Left)];

    fn cells(&self) -> Vec<String> {
        vec![
            self.object.clone(),
            human::or_dash(self.before.as_ref()),
            human::or_dash(self.after.as_ref()),
            if self.live { "yes" } else { "restart" }.to_owned(),
            self.reason.clone().unwrap_or_default(),
        ]
    }
}

/// One kind of things of one pool.
struct PlanRow {
    pool: String,
    what: &'static str,
    /// That keep, move (subscribers only), drain, drain no longer than the drain time, end (subscribers: leave).
    numbers: [Option<u64>; 5],
}

impl PlanRow {
    /// The rows of one pool: subscribers and mappings always, flows and blocks where there are some.
    fn of(plan: &PoolPlan) -> Vec<PlanRow> {
        let pool = if plan.pool.is_empty() { "all".to_owned() } else { plan.pool.clone() };
        let row = |what, numbers| PlanRow { pool: pool.clone(), what, numbers };
        let subscribers = [
            plan.subscribers_keep,
            plan.subscribers_move,
            plan.subscribers_drain,
            plan.subscribers_drain_until,
            plan.subscribers_leave,
        ];
        let mappings = [plan.mappings_keep, plan.mappings_drain, plan.mappings_drain_until, plan.mappings_end];
        let flows = [plan.flows_keep, plan.flows_drain, plan.flows_drain_until, plan.flows_end];
        let blocks = [plan.blocks_keep, plan.blocks_drain, plan.blocks_drain_until, plan.blocks_end];
        // Nothing but a subscriber moves.
        let stays = |[keep, drain, until, end]: [u64; 4]| [Some(keep), None, Some(drain), Some(until), Some(end)];
        let mut rows = vec![row("subscribers", subscribers.map(Some)), row("mappings", stays(mappings))];
        for (what, numbers) in [("flows", flows), ("blocks", blocks)] {
            if numbers.iter().any(|number| *number > 0) {
                rows.push(row(what, stays(numbers)));
            }
        }
        rows
    }
}

impl Row for PlanDetail {
    const COLUMNS: &'static [(&'static str, Align)] =
        &[("WHAT", Left), ("VRF", Left), ("ADDRESS", Left), ("POOL", Left), ("EXTERNAL", Left), ("", Left)];

    fn cells(&self) -> Vec<String> {
        let what = self.what.name();
        let ports = match (self.first_port, self.last_port) {
            (Some(first), Some(last)) if first != last => format!(":{first}-{last}"),
            (Some(port), _) => format!(":{port}"),
            _ => String::new(),
        };
        let external = self.external.map(|address| format!("{address}{ports}"));
        let remote = self.remote.map(|remote| format!(" to {remote}")).unwrap_or_default();
        vec![
            self.protocol.map_or(what.to_owned(), |protocol| format!("{what} {protocol}")),
            human::or_dash(self.vrf.as_ref()),
            self.internal_port.map_or(self.address.to_string(), |port| format!("{}:{port}", self.address)),
            self.pool.clone(),
            human::or_dash(external) + &remote,
            becomes(self),
        ]
    }
}

impl PlanRow {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("POOL", Left),
        ("", Left),
        ("KEEP", Right),
        ("MOVE", Right),
        ("DRAIN", Right),
        ("DRAIN UNTIL", Right),
        ("END OR LEAVE", Right),
    ];

    fn cells(&self) -> Vec<String> {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        [self.pool.clone(), self.what.to_owned()].into_iter().chain(self.numbers.map(number)).collect()
    }
}

/// What becomes of what a detail is about, why, and for how long it may last.
fn becomes(detail: &PlanDetail) -> String {
    let mut told = detail.becomes.name().to_owned();
    if let Some(pool) = detail.next_pool.as_ref().filter(|pool| **pool != detail.pool) {
        told += &format!(" to pool \"{pool}\"");
    }
    if let Some(time) = detail.ends_in_us {
        told += &format!(", {} at most", human::duration(time));
    }
    if let Some(denied) = detail.denied {
        told += &format!(": {}", denied.name());
    }
    if !detail.protocols.is_empty() {
        let names: Vec<String> = detail.protocols.iter().map(ToString::to_string).collect();
        told += &format!(" ({} only)", names.join(", "));
    }
    told
}

/// How rules differ, and what the numbers of a plan say of it.
fn rules(rules: &PlanRules) -> Option<String> {
    let PlanRules { added, removed, moved, narrow, compared } = *rules;
    if added + removed + moved == 0 {
        return None;
    }
    let mut told = format!("rules: {added} added, {removed} removed, {moved} moved");
    if !compared {
        told += "; they name every destination or port, so that no subscriber is asked about by them";
    } else if narrow > 0 {
        told += &format!(
            "; {narrow} of them are about some destinations or ports only: what is new there goes as they say, and counts as nobody's move"
        );
    }
    Some(told)
}

/// What a plan does not name, if there is more.
fn unnamed(more: &Unnamed) -> Option<String> {
    let kinds = [
        (more.subscribers, "subscribers"),
        (more.addresses, "addresses"),
        (more.blocks, "blocks"),
        (more.mappings, "mappings"),
        (more.flows, "flows"),
    ];
    let there = kinds.into_iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> = there.map(|(count, what)| format!("{what} {count}")).collect();
    (!told.is_empty()).then(|| format!("not named: {}; --details N names up to {DETAILS_MAX} of each", told.join(", ")))
}

/// What came in answer to a plan or a reload.
#[derive(Default)]
struct Answer {
    changes: Vec<Change>,
    pools: Vec<PoolPlan>,
    details: Vec<PlanDetail>,
    plan: Option<Plan>,
    reloaded: Option<Reloaded>,
    /// Why it is not done.
    refused: Option<Fault>,
}

impl Answer {
    /// What is told of a change that is not made: what would differ.
    fn tell_refused(&self, is_json: bool, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(fault) = self.refused.clone() else { return Ok(()) };
        if is_json {
            self.changes.iter().try_for_each(|change| json_line(change, out))?;
        } else if !self.changes.is_empty() {
            print_changes(&self.changes, out)?;
        }
        Err(ClientError::Refused(fault).into())
    }
}

/// Asks, and gathers what comes. Faults of the file go to `notes` one by one, before the error that follows them.
fn ask(
    arguments: &NewConfig,
    (details, kept): (u32, bool),
    request: fn(control::NewConfig) -> Request,
    notes: &mut dyn Write,
) -> Result<Answer, CliError> {
    let config = match &arguments.config {
        None => None,
        // The daemon has another working directory.
        Some(path) => Some(absolute(path)?.display().to_string()),
    };
    let mut client = connect(&arguments.output.socket)?;
    client.set_read_timeout(Some(CHANGE_TIMEOUT))?;
    client.send(&request(control::NewConfig { config, rollback: arguments.rollback, details, kept }))?;
    gather(&mut client, notes)
}

fn gather(client: &mut Client, notes: &mut dyn Write) -> Result<Answer, CliError> {
    let mut answer = Answer::default();
    loop {
        match client.receive()? {
            Reply::Change(change) => answer.changes.push(change),
            Reply::PoolPlan(pool) => answer.pools.push(pool),
            Reply::PlanDetail(detail) => answer.details.push(detail),
            Reply::Plan(plan) => answer.plan = Some(plan),
            Reply::Reloaded(reloaded) => answer.reloaded = Some(reloaded),
            Reply::ConfigFault(fault) => {
                let line = fault.line.map(|line| format!(":{line}")).unwrap_or_default();
                let object = if fault.object.is_empty() { String::new() } else { format!(": {}", fault.object) };
                let seen = if fault.seen.is_empty() { String::new() } else { format!(" ({})", fault.seen) };
                // Where notes can not be written nobody reads them.
                let _ =
                    writeln!(notes, "error: {}{line}{object}: {}{seen}; {}", fault.file, fault.problem, fault.remedy);
            }
            Reply::End(_) => return Ok(answer),
            Reply::Error(fault) => {
                answer.refused = Some(fault);
                return Ok(answer);
            }
            // A newer daemon tells more than is asked for here.
            _ => {}
        }
    }
}

/// What does what was planned. Going back is to the configuration before, which its file may not have any more.
fn reload_command(is_rollback: bool, config: &str) -> String {
    if is_rollback { "natrix reload --rollback".to_owned() } else { format!("natrix reload -c {config}") }
}

/// Runs `plan`.
pub(crate) fn plan(arguments: &PlanArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let answer = ask(&arguments.target, (arguments.details, arguments.kept), Request::Plan, notes)?;
    answer.tell_refused(arguments.target.output.json, out)?;
    if arguments.target.output.json {
        answer.changes.iter().try_for_each(|change| json_line(change, out))?;
        answer.pools.iter().try_for_each(|pool| json_line(pool, out))?;
        answer.details.iter().try_for_each(|detail| json_line(detail, out))?;
        answer.plan.iter().try_for_each(|plan| json_line(plan, out))?;
        return Ok(());
    }
    print_changes(&answer.changes, out)?;
    let Some(plan) = answer.plan else { return Ok(()) };
    writeln!(out)?;
    let mut table = Table::new(PlanRow::COLUMNS);
    answer.pools.iter().chain([&plan.total]).flat_map(PlanRow::of).for_each(|row| table.row(row.cells()));
    table.flush(out)?;
    if !answer.details.is_empty() {
        writeln!(out)?;
        print_all(&answer.details, false, out)?;
    }
    if let Some(more) = unnamed(&plan.unnamed) {
        writeln!(out, "{more}")?;
    }
    writeln!(out, "\nexternal addresses: {} added, {} closed", plan.addresses_added, plan.addresses_closed)?;
    if let Some(told) = rules(&plan.rules) {
        writeln!(out, "{told}")?;
    }
    for pool in answer.pools.iter().filter(|pool| pool.guarantee_missing.total() > 0) {
        let of = |missing: u64, guaranteed: u64, what| format!("{missing} of {guaranteed} guaranteed {what} ports");
        let (missing, all) = (&pool.guarantee_missing, &pool.guaranteed);
        let each = [(missing.udp, all.udp, "udp"), (missing.tcp, all.tcp, "tcp"), (missing.icmp, all.icmp, "icmp")];
        let each: Vec<String> = each.into_iter().filter(|it| it.0 > 0).map(|(m, a, what)| of(m, a, what)).collect();
        let each = each.join(", ");
        writeln!(out, "warning: pool \"{}\": {each} are others' now; they are set aside as they come free", pool.pool)?;
    }
    for pool in answer.pools.iter().filter(|pool| pool.slices_leased > 0) {
        let PoolPlan { pool, slices, slices_leased: leased, slices_leased_whole: whole, slices_leased_us, .. } = pool;
        let latest = slices_leased_us.map(|time| format!(", after {} at the latest", human::duration(time)));
        writeln!(
            out,
            "warning: pool \"{pool}\": ports of {leased} of {slices} slices are in port blocks of others now, of {whole} all of them; \
             their subscribers get these as the blocks go back{}",
            latest.unwrap_or_default()
        )?;
    }
    let total = &plan.total;
    if total.subscribers_drain + total.mappings_drain + total.flows_drain + total.blocks_drain > 0 {
        writeln!(out, "drain: as long as they are used")?;
    }
    if let Some(time) = plan.drain_time_us
        && total.mappings_drain_until
            + total.flows_drain_until
            + total.blocks_drain_until
            + total.subscribers_drain_until
            > 0
    {
        writeln!(out, "drain until: mappings that are left after {} end", human::duration(time))?;
    }
    if plan.applies {
        let command = reload_command(arguments.target.rollback, &plan.config);
        writeln!(out, "{command} would do this; nothing was changed by asking")?;
    } else {
        writeln!(out, "{} of these differences need a restart: a reload would be refused", plan.changes_restart)?;
    }
    Ok(())
}

/// Runs `reload`.
pub(crate) fn reload(arguments: &NewConfig, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let answer = ask(arguments, (0, false), Request::Reload, notes)?;
    answer.tell_refused(arguments.output.json, out)?;
    if arguments.output.json {
        answer.changes.iter().try_for_each(|change| json_line(change, out))?;
        answer.reloaded.iter().try_for_each(|reloaded| json_line(reloaded, out))?;
        return Ok(());
    }
    if let Some(reloaded) = answer.reloaded.as_ref().filter(|reloaded| reloaded.changes == 0) {
        writeln!(
            out,
            "nothing differs: {} says what is in force; natrix reload --rollback goes where it did before",
            reloaded.config
        )?;
        return Ok(());
    }
    print_changes(&answer.changes, out)?;
    if let Some(reloaded) = answer.reloaded {
        writeln!(
            out,
            "\n{} is in force: change {} since the start, {} external addresses changed, {} workers went over in {} us ({} us in all)",
            reloaded.config,
            reloaded.generation,
            reloaded.addresses_changed,
            reloaded.workers,
            reloaded.adoption_us,
            reloaded.took_us,
        )?;
    }
    Ok(())
}

fn print_changes(changes: &[Change], out: &mut dyn Write) -> io::Result<()> {
    if changes.is_empty() { writeln!(out, "no differences") } else { print_all(changes, false, out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_ends_with_the_command_that_does_it() {
        assert_eq!(reload_command(false, "/etc/natrix/new.toml"), "natrix reload -c /etc/natrix/new.toml");
        assert_eq!(reload_command(true, "/etc/natrix/new.toml"), "natrix reload --rollback");
    }
}
