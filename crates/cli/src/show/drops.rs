//! `natrix show drops`.

use std::io::Write;

use control::DropReason;
use control::Request;
use control::ratio;

use crate::error::CliError;
use crate::execute::connect;
use crate::human;
use crate::output::json_line;
use crate::show_arguments::ShowDrops;
use crate::table::Align::Left;
use crate::table::Align::Right;
use crate::table::Table;

pub(super) fn show(arguments: &ShowDrops, out: &mut dyn Write) -> Result<(), CliError> {
    let (mut drops, _) = connect(&arguments.output.socket)?.request::<DropReason>(&Request::Drops)?;
    let total: u64 = drops.iter().map(|drop| drop.packets).fold(0, u64::saturating_add);
    // The sort is stable: equally frequent reasons stay in the order of the verdicts.
    drops.sort_by_key(|drop| core::cmp::Reverse(drop.packets));
    drops.retain(|drop| arguments.all || drop.packets > 0);
    drops.truncate(arguments.limit.unwrap_or(usize::MAX));
    if arguments.output.json {
        drops.iter().try_for_each(|drop| json_line(drop, out))?;
        return Ok(());
    }
    if drops.is_empty() {
        writeln!(out, "No packet has been dropped.")?;
        return Ok(());
    }
    let mut table = Table::new(&[("PACKETS", Right), ("SHARE", Right), ("REASON", Left), ("WHY", Left)]);
    for drop in drops {
        let share = human::percent(ratio(drop.packets, total));
        table.row(vec![human::count(drop.packets), share, drop.reason, drop.description]);
    }
    table.flush(out)?;
    writeln!(out, "{} dropped in all", control::counted(total, "packet"))?;
    Ok(())
}
