//! The answer for a time, from the event log and from the formulas of that time's configuration,
//! whose ports have no records. Notes say what makes it uncertain.

use core::net::Ipv4Addr;
use std::path::Path;

use export::Subscriber;
use export::store::Found;
use export::store::Holder;
use export::store::Question;
use export::utc_text;
use nat::Settings;
use serde_json::Value;
use serde_json::json;

use crate::Asked;
use crate::formula;
use crate::formula::NoAnswer;
use crate::log::History;
use crate::log::Query;

/// What the formulas of a configuration say.
#[derive(Debug)]
pub struct Formulas<'a> {
    /// The configuration.
    file: &'a Path,
    slices: Vec<Slice>,
    checksum: u32,
}

impl<'a> Formulas<'a> {
    /// Empty if the address's pool has no formula: then the log has its ports.
    ///
    /// # Errors
    /// The configuration has no such VRF, or a formula is impossible.
    pub fn of(settings: &Settings, file: &'a Path, asked: &Asked<'_>) -> Result<Formulas<'a>, NoAnswer> {
        let answers = match formula::find(settings, asked) {
            // Formulas serve no IPv6 hosts.
            _ if asked.host.is_some() => Vec::new(),
            Err(NoAnswer::NotDeterministic { .. }) => Vec::new(),
            answers => answers?,
        };
        let slices = answers.into_iter().flat_map(|answer| {
            let (holder, vrf) = (answer.holder, answer.vrf.unwrap_or_default());
            answer.subscriber_ports.into_iter().filter_map(move |own| {
                Some(Slice {
                    realm: vrf.clone(),
                    subscriber: holder?,
                    external: own.external_address,
                    first_port: own.first_port,
                    last_port: own.last_port,
                    is_contested: false,
                    is_alone: true,
                })
            })
        });
        Ok(Formulas { file, slices: slices.collect(), checksum: nat::deterministic::checksum(settings) })
    }

    /// The log decides: a mapping that is older than a change of the formulas keeps its port until
    /// it ends. Removes answers that other holders refute for the whole `question`, and notes
    /// doubtful ones.
    pub fn yield_to(&mut self, question: &Question, found: &mut Found) {
        let differs = |slice: &Slice, holder: &Holder| {
            let has_ports = holder.first_port <= slice.last_port && slice.first_port <= holder.last_port;
            let is_of_other_realm =
                holder.vrf.as_ref().is_some_and(|vrf| *vrf != slice.realm && !slice.realm.is_empty());
            let is_other = is_of_other_realm || holder.subscriber != Subscriber::Ipv4(slice.subscriber);
            is_other && holder.external == slice.external && has_ports
        };
        // Holders have the port and protocol that were asked for.
        let Question { from_us, to_us, .. } = *question;
        let answer = &*found;
        let has_all = |holder: &Holder| {
            let is_moment = to_us <= from_us && !answer.has_time_twice;
            is_moment || answer.is_throughout(holder, from_us, to_us)
        };
        let refutes = |holder: &Holder| {
            let is_exact = question.port.is_some() && (holder.protocol.is_none() || question.protocol.is_some());
            is_exact && holder.is_certain && has_all(holder)
        };
        let holders = &answer.holders;
        let mut is_contested = false;
        let mut is_of_subscriber = false;
        self.slices.retain_mut(|slice| {
            let others = holders.iter().filter(|holder| differs(slice, holder));
            let (count, refuting) =
                others.fold((0, 0), |(all, refuting), other| (all + 1, refuting + usize::from(refutes(other))));
            is_contested |= count > 0;
            // Only holders of an external address are searched, not those of each slice.
            let is_searched = slice.external == question.address;
            is_of_subscriber |= !is_searched;
            slice.is_contested = count > 0 || !is_searched || found.are_formulas_doubtful;
            refuting == 0
        });
        if is_of_subscriber {
            let note = "other holders of the ports of a slice were not searched: ask for its external address";
            found.notes.push(note.to_owned());
        }
        if is_contested {
            let note = "the log decides: a mapping older than a change keeps its port until it ends";
            found.notes.push(note.to_owned());
        }
    }

    /// `is_alone`: no log shows that the formulas were in use.
    pub fn into_slices(self, is_alone: bool) -> Vec<Slice> {
        self.slices.into_iter().map(|slice| Slice { is_alone, ..slice }).collect()
    }

    /// Checksum of the formulas, as in the log.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }
}

/// A subscriber's ports by formula, while the configuration is in use.
#[derive(Debug)]
pub struct Slice {
    /// Realm of the subscriber.
    pub realm: String,
    /// Holder of the ports.
    pub subscriber: Ipv4Addr,
    /// External address.
    pub external: Ipv4Addr,
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
    /// The log has, or may have, another holder of some of these ports.
    is_contested: bool,
    /// No log shows that the formula was in use.
    is_alone: bool,
}

impl Slice {
    /// True if nothing contests it and a log confirms the formula.
    pub fn is_certain(&self) -> bool {
        !self.is_alone && !self.is_contested
    }

    /// With the fields of a holder's object.
    pub fn object(&self) -> Value {
        json!({
            "what": "slice",
            "realm": self.realm,
            "subscriber": self.subscriber,
            "protocol": null,
            "internal_port": null,
            "external_address": self.external,
            "first_port": self.first_port,
            "last_port": self.last_port,
            "remote_address": null,
            "remote_port": null,
            "since": null,
            "until": null,
            "ended_by_restart": false,
            "by_formula_alone": self.is_alone,
            "certain": self.is_certain(),
        })
    }
}

/// What the log says about the formulas at the time.
enum Standing {
    /// In use.
    InUse,
    /// Changed within the time.
    Changed { at_us: u64 },
    /// Others were in use.
    Others { since_us: u64, adopted_later_us: Option<u64> },
    /// Not known; with the time of the first later change.
    Unknown { changed_us: Option<u64> },
}

impl Standing {
    fn of(formulas: &Formulas<'_>, found: &History) -> Standing {
        let (changed_us, adopted_later_us) = (found.next_change.map(|next| next.at_us), found.adopted_later_us);
        if let Some(at_us) = found.changed_us {
            return Standing::Changed { at_us };
        }
        match found.in_use.map(|adoption| (adoption.formulas, adoption.at_us)) {
            Some((Some(those), _)) if those == formulas.checksum => Standing::InUse,
            Some((Some(_), since_us)) => Standing::Others { since_us, adopted_later_us },
            Some((None, _)) | None => Standing::Unknown { changed_us },
        }
    }

    /// What limits the answer of the configuration in `file`.
    fn note(&self, file: &Path, at_us: u64) -> Option<String> {
        let (file, at) = (file.display(), utc_text(at_us));
        match self {
            Standing::InUse => None,
            Standing::Changed { at_us } => Some(format!(
                "the formulas changed at {}, in that time; the answer of {file} is left out: ask for a moment before or \
                 after",
                utc_text(*at_us)
            )),
            Standing::Others { since_us, adopted_later_us } => {
                let since = utc_text(*since_us);
                let later = adopted_later_us.map(|later| format!(", those of {file} since {}", utc_text(later)));
                Some(format!(
                    "{file} is not the configuration of that time: other formulas were in use since {since}{}; its \
                     answer for {at} is left out",
                    later.unwrap_or_default()
                ))
            }
            Standing::Unknown { changed_us } => {
                let changed =
                    changed_us.map(|changed| format!(" (one was adopted at {}, after that time)", utc_text(changed)));
                Some(format!(
                    "the log does not say which configuration was in use at {at}{}; the answer of {file} is right only if \
                     it was, and a holder in the log takes precedence",
                    changed.unwrap_or_default()
                ))
            }
        }
    }
}

/// Both sources of the answer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The question.
    pub query: Query<'a>,
    /// What the log has, or why no log was read.
    pub history: Result<History, String>,
    /// What the formulas say, if a configuration was given.
    pub formulas: Option<Formulas<'a>>,
}

impl Answer<'_> {
    /// Holders in the log, and slices of formulas that may have been in use. Notes limit the
    /// answer.
    pub fn join(self) -> (Found, Vec<Slice>) {
        let Query { asked, from_us, to_us, .. } = self.query;
        let changed = self.history.as_ref().is_ok_and(|history| history.changed_us.is_some());
        let in_use = self.history.as_ref().map_or(None, |history| history.in_use?.formulas);
        let Some(mut formulas) = self.formulas else {
            let mut found = self.history.map_or_else(|_| Found::default(), |history| history.found);
            // Without deterministic pools every holder has a record.
            if (in_use != Some(0) || changed) && asked.host.is_none() {
                let missing = "ports of deterministic pools have no records; also give the configuration of that time: \
                               --config FILE";
                limit(&mut found, missing.to_owned());
            }
            return (found, Vec::new());
        };
        let (mut found, standing, note) = match self.history {
            Ok(history) => {
                let standing = Standing::of(&formulas, &history);
                let note = standing.note(formulas.file, from_us);
                (history.found, standing, note)
            }
            Err(why) => {
                let note = format!(
                    "{why}, so no log was read; for dynamic ports, and to check that this configuration was in use, use \
                     --log FILE"
                );
                (Found::default(), Standing::Unknown { changed_us: None }, Some(note))
            }
        };
        // Formulas that were not in use are no answer.
        let is_one = matches!(standing, Standing::InUse | Standing::Unknown { .. });
        if is_one {
            formulas.yield_to(&asked.question(from_us, to_us), &mut found);
        }
        if let Some(note) = note {
            limit(&mut found, note);
        }
        let slices = if is_one { formulas.into_slices(!matches!(standing, Standing::InUse)) } else { Vec::new() };
        (found, slices)
    }
}

fn limit(found: &mut Found, note: String) {
    found.is_complete = false;
    found.notes.push(note);
}

#[cfg(test)]
mod tests {
    use export::store::Until;
    use export::store::What;
    use nat::Protocol;

    use super::*;

    const EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

    fn slice(last: u8, first_port: u16) -> Slice {
        let subscriber = Ipv4Addr::new(10, 0, 0, last);
        let last_port = first_port + 999;
        Slice {
            realm: "a".to_owned(),
            subscriber,
            external: EXTERNAL,
            first_port,
            last_port,
            is_contested: false,
            is_alone: false,
        }
    }

    fn holder(last: u8, port: u16) -> Holder {
        Holder {
            since_us: 1,
            until: Until::Open,
            what: What::Mapping,
            realm: 0,
            vrf: None,
            pool: None,
            pool_name: None,
            subscriber: Subscriber::Ipv4([10, 0, 0, last].into()),
            protocol: Some(Protocol::Udp),
            internal_port: Some(5_000),
            external: EXTERNAL,
            first_port: port,
            last_port: port,
            remote: None,
            is_certain: true,
            is_since_exact: true,
            is_ms_shared: false,
        }
    }

    /// Subscribers of the remaining slices; true if a note says that the log decides.
    fn left(question: &Question, holders: Vec<Holder>) -> (Vec<(u8, bool)>, bool) {
        let slices = vec![slice(1, 2_000), slice(2, 3_000)];
        let mut formulas = Formulas { file: Path::new("natrix.toml"), slices, checksum: 1 };
        let mut found = Found { holders, is_complete: true, ..Found::default() };
        formulas.yield_to(question, &mut found);
        let left = formulas.slices.iter().map(|slice| (slice.subscriber.octets()[3], slice.is_contested));
        (left.collect(), found.notes.iter().any(|note| note.starts_with("the log decides")))
    }

    #[test]
    fn a_holder_in_the_log_refutes_another_by_the_formula() {
        let asked = Question {
            address: EXTERNAL,
            host: None,
            port: Some(2_500),
            protocol: Some(Protocol::Udp),
            from_us: 5,
            to_us: 5,
        };
        assert_eq!(left(&asked, vec![]), (vec![(1, false), (2, false)], false));
        assert_eq!(left(&asked, vec![holder(1, 2_500)]), (vec![(1, false), (2, false)], false), "they agree");
        assert_eq!(left(&asked, vec![holder(9, 2_500)]), (vec![(2, false)], true), "the first is innocent");
        // It may be right for TCP, at another moment, or against an uncertain holder.
        let kept = (vec![(1, true), (2, false)], true);
        assert_eq!(left(&Question { protocol: None, ..asked }, vec![holder(9, 2_500)]), kept);
        let begun_in_it = Holder { since_us: 7_000, ..holder(9, 2_500) };
        let longer = Question { from_us: 6_000, to_us: 9_000, ..asked };
        assert_eq!(left(&longer, vec![begun_in_it.clone()]), kept);
        assert_eq!(left(&longer, vec![Holder { until: Until::Ended(9_000), ..begun_in_it }]), kept);
        assert_eq!(left(&longer, vec![holder(9, 2_500)]), (vec![(2, false)], true), "held by the other all the time");
        assert_eq!(left(&asked, vec![Holder { is_certain: false, ..holder(9, 2_500) }]), kept);
        // The holders of a subscriber's slices are not searched.
        let of_subscriber = Question { address: Ipv4Addr::new(10, 0, 0, 1), port: None, ..asked };
        assert_eq!(left(&of_subscriber, vec![]), (vec![(1, true), (2, true)], false));
        // Of all ports of the slice, the others stay.
        assert_eq!(left(&Question { port: None, ..asked }, vec![holder(9, 2_500)]), kept);
    }
}
