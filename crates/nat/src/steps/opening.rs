use crate::event::Cause;
use crate::external::blocks::Block;
use crate::external::ports::Draw;
use crate::external::ports::Parity;
use crate::external::ports::PortAim;
use crate::external::ports::Share;
use crate::external::ports::Taker;
use crate::external::static_mapping::Kind;
use crate::settings::Selection;
use crate::snapshot::shared::CompiledPool;
use crate::state::mapping::InternalKey;
use crate::steps::expired::Expired;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;

#[derive(Clone, Copy)]
pub(crate) struct Hints {
    pub(crate) hash: u64,
    /// Record of the subscriber; 0 if unknown.
    pub(crate) subscriber: u32,
    pub(crate) aim: Option<PortAim>,
    pub(crate) drawn: Option<Drawn>,
}

impl Hints {
    pub(crate) const fn of(hash: u64) -> Hints {
        Hints { hash, subscriber: 0, aim: None, drawn: None }
    }

    /// What was drawn, if an address of this pool is to be chosen.
    pub(crate) fn drawn_for(&self, entry: &Entry, compiled: &CompiledPool) -> Option<&Drawn> {
        self.drawn.as_ref().filter(|drawn| entry.place == Place::Chosen && drawn.pool == compiled.id)
    }

    /// After a lost race: what was drawn may be what the other worker took.
    pub(crate) fn forget_draws(&mut self) {
        (self.aim, self.drawn) = (None, None);
    }
}

/// Drawn for a packet that may make its source a subscriber, before what the choice reads is in the
/// cache.
#[derive(Clone, Copy)]
pub(crate) struct Drawn {
    pub(crate) pool: PoolId,
    pub(crate) draw: Draw,
    /// A place to look for a port, for each address of the draw.
    pub(crate) aims: [Option<PortAim>; 2],
}

impl Drawn {
    pub(crate) fn aim_at(&self, address: AddressIndex) -> Option<PortAim> {
        let mut aims = self.draw.addresses().into_iter().zip(self.aims);
        aims.find(|(drawn, _)| *drawn == address)?.1
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Ask<'k> {
    pub(crate) now: Instant,
    pub(crate) key: &'k InternalKey,
    /// The pool chosen by a rule; `None` for the subscriber's own.
    pub(crate) wanted: Option<PoolId>,
    pub(crate) hints: Hints,
    /// They end first and do not count. In the packet path they have ended.
    pub(crate) expired: Expired,
}

#[derive(Clone, Copy)]
pub(crate) struct Owner {
    /// `None` if this mapping makes it a subscriber.
    pub(crate) slot: Option<u32>,
    /// The record with its rates: its own, or a lapsed one.
    pub(crate) past: Option<u32>,
    pub(crate) class: u16,
    pub(crate) penalty: Option<PoolId>,
    pub(crate) released: Option<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    At(AddressIndex),
    /// This address if it has room, else another.
    Preferred(AddressIndex),
    Chosen,
    Any,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) pool: PoolId,
    pub(crate) place: Place,
    /// True if the record differs, or was last checked under other settings.
    pub(crate) is_new: bool,
    /// New value for the address before a penalty.
    pub(crate) home: Option<Option<AddressIndex>>,
    /// An address of another pool, where it stays paired as well.
    pub(crate) elsewhere: Option<AddressIndex>,
}

impl Entry {
    pub(crate) const fn new(pool: PoolId, place: Place) -> Entry {
        Entry { pool, place, is_new: true, home: None, elsewhere: None }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Entered {
    pub(crate) entry: Entry,
    pub(crate) address: AddressIndex,
}

#[derive(Clone, Copy)]
pub(crate) struct FromGuaranteed {
    pub(crate) share: Share,
    /// The subscriber is paired with the address and has its guarantee there.
    pub(crate) is_own: bool,
    /// A new subscriber's whole guarantee must be available.
    pub(crate) needs_all: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Source {
    Static(Kind),
    Free {
        taker: Taker,
        guaranteed: Option<FromGuaranteed>,
        /// From now on, this block serves the protocol first.
        activates: Option<Block>,
    },
    Given(Block),
    Lease {
        block: Block,
        parity: Option<Parity>,
    },
}

impl Source {
    pub(crate) const SINGLE: Source = Source::Free { taker: Taker::Anyone, guaranteed: None, activates: None };
}

#[derive(Clone, Copy)]
pub(crate) struct External {
    pub(crate) address: AddressIndex,
    /// If a block is newly leased, the lease chooses the port.
    pub(crate) port: u16,
    pub(crate) source: Source,
}

#[derive(Clone, Copy)]
pub(crate) struct NewMapping {
    pub(crate) key: InternalKey,
    pub(crate) hash: u64,
    pub(crate) owner: Owner,
    /// `None` leaves the record as it is.
    pub(crate) entered: Option<Entered>,
    pub(crate) external: External,
    /// The record stores the address if it is of another pool.
    pub(crate) notes_place: bool,
    pub(crate) gives_single_ports: bool,
    /// A round-robin pool that must advance.
    pub(crate) turn: Option<PoolId>,
    pub(crate) cause: Cause,
}

pub(crate) fn turn_of(compiled: &CompiledPool, is_chosen: bool) -> Option<PoolId> {
    (is_chosen && compiled.selection == Selection::RoundRobin).then_some(compiled.id)
}
