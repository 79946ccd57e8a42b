//! Copies of the engine's state for display, a page at a time so that traffic never waits.

use crate::headers::icmp_quote::QuoteChange;
use crate::steps::expired::Vacancy;
use crate::steps::inbound::Act;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::Via;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::WorkerId;
use crate::verdict::Verdict;

pub use crate::rows::BalancedView;
pub use crate::rows::ExpectationView;
pub use crate::rows::FLOW_CURSORS;
pub use crate::rows::Filter;
pub use crate::rows::GatewayNow;
pub use crate::rows::GrantView;
pub use crate::rows::Guarantee;
pub use crate::rows::HostView;
pub use crate::rows::MappingView;
pub use crate::rows::Query;
pub use crate::rows::SessionView;
pub use crate::rows::StaticView;
pub use crate::rows::SubscriberPorts;
pub use crate::rows::SubscriberView;
pub use crate::rows::TornBlock;
pub use crate::steps::step::HostRole;
pub use crate::steps::step::STEPS_MAX;
pub use crate::steps::step::Step;

/// What would happen to a packet now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Decisions in order.
    pub steps: Vec<Step>,
    /// The result.
    pub verdict: Verdict,
    /// If the packet leaves.
    pub source_after: Option<Endpoint>,
    /// If the packet leaves.
    pub destination_after: Option<Endpoint>,
    /// Another worker must explain the rest.
    pub onward: Option<Onward>,
}

/// A packet that another worker continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Onward {
    /// The worker that continues.
    pub worker: WorkerId,
    /// Its realm.
    pub realm: RealmId,
    /// Port 0 if the mapping does not exist yet.
    pub source: Endpoint,
    /// The quote of an ICMP error as the next worker gets it.
    pub(crate) quoted: Option<QuoteChange>,
    pub(crate) course: Course,
}

/// What the other worker decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// What a packet to an external endpoint leads to.
    Enter { via: Via, turn: u8, is_vacated: bool },
    /// Whether its mapping on this port has expired, for a packet from inside.
    Vacate { asker: WorkerId, protocol: Protocol, external: Endpoint },
    /// The packet from inside once more, knowing that.
    Leave(Vacancy),
}

impl Onward {
    /// The sender's worker begins again: the explanation so far does not count.
    pub(crate) fn begins_again(&self) -> bool {
        matches!(self.course, Course::Leave(_))
    }

    pub(crate) fn via(&self) -> Option<Via> {
        match self.course {
            Course::Enter { via, .. } => Some(via),
            Course::Vacate { .. } | Course::Leave(_) => None,
        }
    }

    pub(crate) fn by(packet: &Inbound<'_>, act: &Act) -> Option<Onward> {
        let (worker, turn, is_vacated) = match *act {
            Act::HandOff { worker, turn } => (worker, turn, packet.is_vacated),
            Act::Vacate { worker, .. } => (worker, 0, true),
            _ => return None,
        };
        let source = Endpoint::new(packet.parsed.source.into(), packet.parsed.source_port);
        let course = Course::Enter { via: packet.via, turn, is_vacated };
        Some(Onward { worker, realm: packet.realm, source, quoted: None, course })
    }
}
