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
use crate::execute::connect_for;
use crate::human;
use crate::output::Row;
use crate::output::json_line;
use crate::output::print_all;
use crate::show_arguments::Case;
use crate::table::Align;
use crate::table::Align::Left;
use crate::table::Align::Right;
use crate::table::Table;
use crate::table::write_plain;

/// A plan reads all tables, a part at a time; a reload compiles a whole configuration.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Most objects of each kind that a daemon names.
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

/// The plan for one kind of object of one pool.
struct PlanRow {
    pool: String,
    what: &'static str,
    /// Counts of keep, move (subscribers only), drain, drain until the drain time, and end
    /// (subscribers: leave).
    numbers: [Option<u64>; 5],
}

impl PlanRow {
    /// The rows of one pool: subscribers and mappings always, flows and blocks if there are any.
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
        // Only subscribers move.
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

/// The effect on the object of a detail, the reason, and the time that is left.
fn becomes(detail: &PlanDetail) -> String {
    let mut text = detail.becomes.name().to_owned();
    if let Some(pool) = detail.next_pool.as_ref().filter(|pool| **pool != detail.pool) {
        text += &format!(" to pool \"{pool}\"");
    }
    if let Some(time) = detail.ends_in_us {
        text += &format!(", {} at most", human::duration(time));
    }
    if let Some(denied) = detail.denied {
        text += &format!(": {}", denied.name());
    }
    if !detail.protocols.is_empty() {
        let names: Vec<String> = detail.protocols.iter().map(ToString::to_string).collect();
        text += &format!(" ({} only)", names.join(", "));
    }
    text
}

/// The differences of rules, and how the counts of a plan include them.
fn rules(rules: &PlanRules) -> Option<String> {
    let PlanRules { added, removed, moved, narrow, compared } = *rules;
    if added + removed + moved == 0 {
        return None;
    }
    let mut text = format!("rules: {added} added, {removed} removed, {moved} moved");
    if !compared {
        text += "; too many different conditions, so the counts do not include the effect of rules";
    } else if narrow > 0 {
        let (matches, their) = if narrow == 1 { ("matches", "its") } else { ("match", "their") };
        text += &format!(
            "; {narrow} of them {matches} only some destinations or ports: the counts do not include {their} effect on new mappings there"
        );
    }
    Some(text)
}

/// The ports of forwards that old mappings still have, and until when.
fn waiting_forwards(plan: &PoolPlan, drain_time_us: Option<u64>) -> String {
    let PoolPlan { pool, forwards_wait_drain: unlimited, forwards_wait_drain_until: limited, .. } = plan;
    let latest = drain_time_us.filter(|_| *unlimited == 0).map(human::duration);
    let latest = latest.map_or_else(String::new, |time| format!(", after {time} at the latest"));
    let waiting = unlimited + limited;
    let are = if waiting == 1 { "is" } else { "are" };
    format!(
        "warning: pool \"{pool}\": {} of forwards {are} in use by mappings of other inside endpoints; these forwards take no new \
         sessions until the mappings end{latest}",
        human::counted(waiting, "port")
    )
}

/// Counts of the objects that a plan does not name.
fn unnamed(more: &Unnamed) -> Option<String> {
    let kinds = [
        (more.subscribers, "subscribers"),
        (more.addresses, "addresses"),
        (more.blocks, "blocks"),
        (more.mappings, "mappings"),
        (more.flows, "flows"),
    ];
    let there = kinds.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = there.map(|(count, what)| format!("{what} {count}")).collect();
    (!counts.is_empty())
        .then(|| format!("not named: {}; --details N names up to {DETAILS_MAX} of each", counts.join(", ")))
}

/// The answer to a plan or a reload.
#[derive(Default)]
struct Answer {
    changes: Vec<Change>,
    pools: Vec<PoolPlan>,
    details: Vec<PlanDetail>,
    plan: Option<Plan>,
    reloaded: Option<Reloaded>,
    /// Why the change is refused.
    refused: Option<Fault>,
}

impl Answer {
    /// Prints the differences of a refused change.
    fn report_refused(&self, is_json: bool, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(fault) = self.refused.clone() else { return Ok(()) };
        if is_json {
            self.changes.iter().try_for_each(|change| json_line(change, out))?;
        } else if !self.changes.is_empty() {
            print_changes(&self.changes, out)?;
        }
        Err(ClientError::Refused(fault).into())
    }
}

/// Sends the request and collects the answer. Writes faults of the file to `notes`, before the
/// error that follows them.
fn ask(
    arguments: &NewConfig,
    (details, kept, case): (u32, bool, &Case),
    request: fn(control::NewConfig) -> Request,
    notes: &mut dyn Write,
) -> Result<Answer, CliError> {
    let config = match &arguments.config {
        None => None,
        // The daemon has another working directory.
        Some(path) => Some(absolute(path)?.display().to_string()),
    };
    let mut client = connect_for(&arguments.output.socket, case.case.clone())?;
    client.set_read_timeout(Some(CHANGE_TIMEOUT))?;
    client.send(&request(control::NewConfig {
        config,
        rollback: arguments.rollback,
        details,
        kept,
        ..control::NewConfig::default()
    }))?;
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
                // A failure to write notes has no reader to report to.
                let text = format!("error: {}{line}{object}: {}{seen}; {}", fault.file, fault.problem, fault.remedy);
                let _ = write_plain(notes, &text);
            }
            Reply::End(_) => return Ok(answer),
            Reply::Error(fault) => {
                answer.refused = Some(fault);
                return Ok(answer);
            }
            // A newer daemon may send other kinds of objects.
            _ => {}
        }
    }
}

/// The command that makes the planned change. A rollback uses the previous configuration itself,
/// because its file may have changed.
fn reload_command(is_rollback: bool, config: &str) -> String {
    if is_rollback { "natrix reload --rollback".to_owned() } else { format!("natrix reload -c {config}") }
}

/// Runs `plan`.
pub(crate) fn plan(arguments: &PlanArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let answer = ask(&arguments.target, (arguments.details, arguments.kept, &arguments.case), Request::Plan, notes)?;
    answer.report_refused(arguments.target.output.json, out)?;
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
    if let Some(text) = rules(&plan.rules) {
        writeln!(out, "{text}")?;
    }
    for warning in &plan.warnings {
        write_plain(out, &format!("warning: {warning}"))?;
    }
    for pool in answer.pools.iter().filter(|pool| pool.guarantee_missing.total() > 0) {
        let of = |missing: u64, guaranteed: u64, what| format!("{missing} of {guaranteed} guaranteed {what} ports");
        let (missing, all) = (&pool.guarantee_missing, &pool.guaranteed);
        let each = [(missing.udp, all.udp, "UDP"), (missing.tcp, all.tcp, "TCP"), (missing.icmp, all.icmp, "ICMP")];
        let each: Vec<String> = each.into_iter().filter(|it| it.0 > 0).map(|(m, a, what)| of(m, a, what)).collect();
        let each = each.join(", ");
        let name = &pool.pool;
        let text = "are in use by other subscribers; they will be reserved as they become free";
        write_plain(out, &format!("warning: pool \"{name}\": {each} {text}"))?;
    }
    for pool in answer.pools.iter().filter(|pool| pool.forwards_wait_drain + pool.forwards_wait_drain_until > 0) {
        write_plain(out, &waiting_forwards(pool, plan.drain_time_us))?;
    }
    for pool in answer.pools.iter().filter(|pool| pool.slices_leased > 0) {
        let PoolPlan { pool, slices, slices_leased: leased, slices_leased_whole: whole, slices_leased_us, .. } = pool;
        let latest = slices_leased_us.map(|time| format!(", within {}", human::duration(time)));
        let text = format!(
            "warning: pool \"{pool}\": {leased} of {slices} slices overlap port blocks of other subscribers ({whole} of them completely); \
             their subscribers get these ports as the blocks are returned{}",
            latest.unwrap_or_default()
        );
        write_plain(out, &text)?;
    }
    let total = &plan.total;
    if total.subscribers_drain + total.mappings_drain + total.flows_drain + total.blocks_drain > 0 {
        writeln!(out, "drain: until no longer used")?;
    }
    if let Some(time) = plan.drain_time_us
        && total.mappings_drain_until
            + total.flows_drain_until
            + total.blocks_drain_until
            + total.subscribers_drain_until
            > 0
    {
        writeln!(out, "drain until: mappings end after {} at the latest", human::duration(time))?;
    }
    if plan.applies {
        let command = reload_command(arguments.target.rollback, &plan.config);
        write_plain(out, &format!("nothing was changed; to make this change: {command}"))?;
    } else {
        let needs = if plan.changes_restart == 1 { "needs" } else { "need" };
        let differences = human::counted(plan.changes_restart, "difference");
        writeln!(out, "{differences} {needs} a restart; a reload would be refused")?;
    }
    Ok(())
}

/// Runs `reload`.
pub(crate) fn reload(arguments: &NewConfig, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let answer = ask(arguments, (0, false, &Case::default()), Request::Reload, notes)?;
    answer.report_refused(arguments.output.json, out)?;
    if arguments.output.json {
        answer.changes.iter().try_for_each(|change| json_line(change, out))?;
        answer.reloaded.iter().try_for_each(|reloaded| json_line(reloaded, out))?;
        return Ok(());
    }
    if let Some(reloaded) = answer.reloaded.as_ref().filter(|reloaded| reloaded.changes == 0) {
        let text = "matches the running configuration; the `--rollback` target stays the same";
        write_plain(out, &format!("no changes: {} {text}", reloaded.config))?;
        return warn_of_file(reloaded, out);
    }
    print_changes(&answer.changes, out)?;
    if let Some(reloaded) = answer.reloaded {
        writeln!(out)?;
        let text = format!(
            "{} is in use: change {} since the start, {} changed, {} switched in {} ({} in total)",
            reloaded.config,
            reloaded.generation,
            human::counted(reloaded.addresses_changed, "external address"),
            human::counted(reloaded.workers, "worker"),
            human::duration(reloaded.adoption_us),
            human::duration(reloaded.took_us),
        );
        write_plain(out, &text)?;
        for warning in &reloaded.warnings {
            write_plain(out, &format!("warning: {warning}"))?;
        }
        warn_of_file(&reloaded, out)?;
    }
    Ok(())
}

/// Says if a restart would bring another configuration.
fn warn_of_file(reloaded: &Reloaded, out: &mut dyn Write) -> Result<(), CliError> {
    if let Some(why) = &reloaded.not_saved {
        write_plain(out, &format!("warning: in use until the next restart, and not in the file: {why}"))?;
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
    fn a_plan_ends_with_the_command_for_the_change() {
        assert_eq!(reload_command(false, "/etc/natrix/new.toml"), "natrix reload -c /etc/natrix/new.toml");
        assert_eq!(reload_command(true, "/etc/natrix/new.toml"), "natrix reload --rollback");
    }
}
