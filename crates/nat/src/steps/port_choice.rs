use crate::external::blocks::Block;
use crate::external::ports::Parity;
use crate::external::ports::PortAim;
use crate::external::ports::PortClass;
use crate::external::ports::PortRange;
use crate::external::ports::Share;
use crate::external::ports::Sought;
use crate::external::ports::Taker;
use crate::external::static_mapping::Kind;
use crate::random::Random;
use crate::settings::Filtering;
use crate::snapshot::shared::CompiledBlocks;
use crate::snapshot::shared::CompiledPool;
use crate::snapshot::slices_in_blocks::SliceUse;
use crate::state::mapping::InternalKey;
use crate::state::mapping::Mapping;
use crate::state::tcp::TcpState;
use crate::steps::expired::Expired;
use crate::steps::opening::Ask;
use crate::steps::opening::External;
use crate::steps::opening::FromGuaranteed;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::opening::Source;
use crate::steps::pairing::UNPAIRED;
use crate::steps::view::View;
use crate::time::Duration;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::verdict::Verdict;

/// Another attempt only helps if another worker takes the address's last port at the same moment.
const ARBITRARY_ATTEMPTS: usize = 8;

/// RFC 4787 §4.2.1 REQ-3a: well-known ports map to well-known ones and others to others, if the
/// pool has both.
#[inline]
pub(crate) fn port_class(port: u16, compiled: &CompiledPool) -> PortClass {
    let is_low = port < 1024;
    if (is_low && compiled.has_low_ports) || !compiled.has_high_ports { PortClass::Low } else { PortClass::High }
}

/// RFC 4787 §4.2.2 REQ-4 as relaxed by RFC 7857 §8. A query identifier has no parity.
#[inline]
fn parity_of(key: &InternalKey, compiled: &CompiledPool) -> Option<Parity> {
    (compiled.parity && key.protocol != Protocol::Icmp).then(|| Parity::of(key.port))
}

fn parities(parity: Option<Parity>) -> impl Iterator<Item = Option<Parity>> {
    [parity, None].into_iter().take(if parity.is_none() { 1 } else { 2 })
}

fn range_of(blocks: &CompiledBlocks, address: AddressIndex) -> PortRange {
    PortRange { address, first: blocks.first, last: blocks.last }
}

fn free_port(address: AddressIndex, port: u16, guaranteed: Option<FromGuaranteed>) -> External {
    External { address, port, source: Source::Free { taker: Taker::Anyone, guaranteed, activates: None } }
}

/// Of the port, if the mapping ends now.
pub(crate) fn hold_down_of_port(mapping: &Mapping, compiled: &CompiledPool) -> Duration {
    if compiled.one_to_one {
        // No other subscriber ever gets it (RFC 6888 REQ-8B).
        return Duration::ZERO;
    }
    let protocol = mapping.protocol();
    let at_once = compiled.reuse_at_once;
    let is_filtered = compiled.filtering[protocol.index()] != Filtering::EndpointIndependent;
    let was_closed = protocol == Protocol::Tcp
        && mapping.has_session()
        && mapping.extra_count() == 0
        && mapping.state() == TcpState::Closing;
    if (at_once.filtered && is_filtered) || (at_once.tcp_closed && was_closed) {
        Duration::ZERO
    } else {
        compiled.reuse_delay
    }
}

struct SubscriberPorts<'k> {
    slot: Option<u32>,
    paired: AddressIndex,
    key: &'k InternalKey,
    compiled: &'k CompiledPool,
}

impl View<'_> {
    /// A random free port of the subscriber's slice or blocks, else of the paired address, else of
    /// any.
    #[expect(clippy::too_many_arguments, reason = "what the decision has found so far")]
    pub(crate) fn external_for(
        &self,
        owner: &Owner,
        paired: AddressIndex,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
        aim: Option<PortAim>,
        random: &mut Random,
    ) -> Result<External, Verdict> {
        let parity = parity_of(key, compiled);
        if !compiled.gives_single_ports() {
            return self.own_external(
                &SubscriberPorts { slot: owner.slot, paired, key, compiled },
                parity,
                aim,
                random,
            );
        }
        if compiled.has_guarantees() {
            let guaranteed = self.share_at(owner, key, compiled, paired).ok_or(Verdict::PortsExhausted)?;
            let port = self.pick_single(paired, key, class, parity, random).ok_or(Verdict::PortsExhausted)?;
            return Ok(free_port(paired, port, Some(guaranteed)));
        }
        if let Some(aim) = aim.filter(|_| paired != UNPAIRED)
            && let Some(found) = self.snapshot.ports.aim_closer(paired, key.protocol, parity, aim)
        {
            return Ok(free_port(paired, found.port(), None));
        }
        if paired != UNPAIRED {
            let port = self.pick_single(paired, key, class, parity, random).ok_or(Verdict::PortsExhausted)?;
            return Ok(free_port(paired, port, None));
        }
        for _ in 0..ARBITRARY_ATTEMPTS {
            let address = self.choose_address(key, compiled, class, random).ok_or(Verdict::PortsExhausted)?;
            if let Some(port) = self.pick_single(address, key, class, parity, random) {
                return Ok(free_port(address, port, None));
            }
        }
        Err(Verdict::PortsExhausted)
    }

    /// The pool gives the subscriber no blocks.
    pub(crate) fn external_in_other_pool(
        &self,
        slot: u32,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
        random: &mut Random,
    ) -> Result<External, Verdict> {
        let place = if compiled.gives_single_ports() { self.place_in_other_pool(slot, compiled) } else { None };
        let address = match place.ok_or(Verdict::PortsExhausted)? {
            Place::At(address) => address,
            _ => self.choose_address(key, compiled, class, random).ok_or(Verdict::PortsExhausted)?,
        };
        if compiled.has_guarantees() && !self.has_beyond_guarantees(compiled, address, key.protocol) {
            return Err(Verdict::PortsExhausted);
        }
        let guaranteed = FromGuaranteed { share: Share::Beyond, is_own: false, needs_all: false };
        let port = self.pick_single(address, key, class, parity_of(key, compiled), random);
        let port = port.ok_or(Verdict::PortsExhausted)?;
        Ok(free_port(address, port, Some(guaranteed).filter(|_| compiled.has_guarantees())))
    }

    /// The port of the endpoint's expired mapping. Until that ends, all others look at the port as
    /// taken. `only`: an address of the pool where the endpoint must be.
    pub(crate) fn port_of_expired(&self, ask: &Ask<'_>, compiled: &CompiledPool, only: Place) -> Option<External> {
        let expired = self.state.mappings.get(ask.expired.own?);
        let (key, external) = (self.static_key(&expired.key()), expired.external());
        let address = self.snapshot.address_index(external.address)?;
        let is_there = match only {
            Place::At(only) => only == address,
            Place::Preferred(_) | Place::Chosen | Place::Any => self.snapshot.pool_of(address) == compiled.id,
        };
        let is_left = is_there
            && self.snapshot.closed(address).is_none()
            && self.snapshot.orphaned(&key, external, expired.created_s()).is_none()
            && hold_down_of_port(expired, compiled) == Duration::ZERO;
        is_left.then(|| free_port(address, external.port, None))
    }

    /// `None` while an older mapping that lives has the port, or it is held down.
    pub(crate) fn static_external(
        &self,
        protocol: Protocol,
        (external, kind): (Endpoint, Kind),
        expired: &Expired,
    ) -> Option<External> {
        let address = self.snapshot.address_index(external.address)?;
        let ports = &self.snapshot.ports;
        let is_free = match kind {
            Kind::OneToOne => ports.is_free(address, protocol, external.port),
            Kind::Forward => ports.is_kept(address, protocol, external.port),
        };
        let found = External { address, port: external.port, source: Source::Static(kind) };
        let is_freed = || self.is_freed(expired, (address, protocol, external.port), kind);
        (is_free || is_freed()).then_some(found)
    }

    fn pick_single(
        &self,
        address: AddressIndex,
        key: &InternalKey,
        class: PortClass,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Option<u16> {
        let (worker, workers) = (self.worker, self.snapshot.workers());
        let sought = Sought { address, protocol: key.protocol, class, worker, workers };
        parities(parity).find_map(|parity| self.snapshot.ports.pick(&sought, parity, random))
    }

    /// The slice, which is used up first (RFC 7422 §2), or the active block.
    #[inline]
    pub(crate) fn usual_range(
        &self,
        slot: u32,
        compiled: &CompiledPool,
        protocol: Protocol,
    ) -> Option<(PortRange, Taker)> {
        let record = self.state.subscribers.get(slot);
        let paired = AddressIndex(record.paired);
        if compiled.slice_ports != 0 {
            let slice = self.slice_of(compiled, record.address).filter(|range| range.address == paired);
            return slice.map(|range| (range, Taker::Anyone));
        }
        let block = record.active_block(protocol).filter(|block| block.address() == paired)?;
        Some((PortRange::of_block(block), Taker::Holder))
    }

    #[inline]
    fn slice_of(&self, compiled: &CompiledPool, inside: HostNumber) -> Option<PortRange> {
        let slice = self.snapshot.formula(compiled.id)?.slice_of(inside)?;
        Some(PortRange { address: self.snapshot.member(compiled, slice.address), first: slice.first, last: slice.last })
    }

    /// A block of an address that drains or has moved only serves existing mappings, and does not
    /// count against the limit.
    fn serves(&self, compiled: &CompiledPool, block: Block) -> bool {
        let address = block.address();
        self.snapshot.pool_of(address) == compiled.id && self.snapshot.closed(address).is_none()
    }

    fn own_external(
        &self,
        own: &SubscriberPorts<'_>,
        parity: Option<Parity>,
        aim: Option<PortAim>,
        random: &mut Random,
    ) -> Result<External, Verdict> {
        let protocol = own.key.protocol;
        if let (Some(slot), Some(aim)) = (own.slot, aim)
            && let Some((range, taker)) = self.usual_range(slot, own.compiled, protocol)
            && range.contains(aim.port())
            && let Some(found) = self.snapshot.ports.aim_closer_within(&range, protocol, parity, aim, taker)
        {
            let source = Source::Free { taker, guaranteed: None, activates: None };
            return Ok(External { address: range.address, port: found.port(), source });
        }
        // A port of the other parity is better than another block.
        let found = parities(parity).find_map(|parity| self.search_subscriber_ports(own, parity, random));
        found.map_or_else(|| self.block_for(own, parity, random), Ok)
    }

    /// Searches the subscriber's blocks. A port of another block makes that active.
    fn search_subscriber_ports(
        &self,
        own: &SubscriberPorts<'_>,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Option<External> {
        let (ports, compiled, protocol) = (&self.snapshot.ports, own.compiled, own.key.protocol);
        let mut pick = |range: PortRange, taker: Taker, activates: Option<Block>| {
            let port = ports.pick_within(&range, protocol, parity, taker, random)?;
            let source = Source::Free { taker, guaranteed: None, activates };
            Some(External { address: range.address, port, source })
        };
        if compiled.slice_ports != 0
            && let Some(range) = self.slice_of(compiled, own.key.address)
            && let Some(found) = pick(range, Taker::Anyone, None)
        {
            return Some(found);
        }
        let slot = own.slot?;
        let active = self.state.subscribers.get(slot).active_block(protocol);
        if let Some(block) = active.filter(|block| self.serves(compiled, *block))
            && let Some(found) = pick(PortRange::of_block(block), Taker::Holder, None)
        {
            return Some(found);
        }
        let mut others = self.blocks_of(slot).filter(|block| active != Some(*block) && self.serves(compiled, *block));
        others.find_map(|block| pick(PortRange::of_block(block), Taker::Holder, Some(block)))
    }

    fn block_for(
        &self,
        own: &SubscriberPorts<'_>,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Result<External, Verdict> {
        let blocks = own.compiled.blocks.ok_or(Verdict::PortsExhausted)?;
        let may_have = usize::from(blocks.per_subscriber_max);
        if self.serving_blocks(own.slot, own.compiled).take(may_have).count() >= may_have {
            return Err(Verdict::BlockLimit);
        }
        if !self.events.has_room_to_allocate() {
            return Err(Verdict::LogFull);
        }
        let attempts = if own.paired == UNPAIRED { ARBITRARY_ATTEMPTS } else { 1 };
        for _ in 0..attempts {
            let address = if own.paired == UNPAIRED {
                let chosen = self.choose_address(own.key, own.compiled, PortClass::High, random);
                chosen.ok_or(Verdict::PortsExhausted)?
            } else {
                own.paired
            };
            let ports = &self.snapshot.ports;
            if let Some(block) = ports.find_block(&range_of(&blocks, address), blocks.size, random) {
                let range = PortRange::of_block(block);
                // For some protocols, perhaps none of its ports is offered.
                let serves = ports.available_within(&range, own.key.protocol) > 0;
                let leased = External { address, port: 0, source: Source::Lease { block, parity } };
                return if serves { Ok(leased) } else { Err(Verdict::PortsExhausted) };
            }
        }
        Err(Verdict::PortsExhausted)
    }

    fn serving_blocks(&self, slot: Option<u32>, compiled: &CompiledPool) -> impl Iterator<Item = Block> {
        slot.into_iter().flat_map(|slot| self.blocks_of(slot)).filter(|block| self.serves(compiled, *block))
    }

    /// The slice, and how much of it lies in others' blocks. Not for the packet path.
    pub(crate) fn slice_in_blocks(&self, compiled: &CompiledPool, key: &InternalKey) -> Option<(PortRange, SliceUse)> {
        let slice = self.slice_of(compiled, key.address).filter(|_| compiled.slice_ports != 0)?;
        Some((slice, self.snapshot.slice_in_blocks(slice, key.protocol, key.realm, key.address)))
    }

    /// An upper bound. Not for the packet path.
    pub(crate) fn ports_left(
        &self,
        owner: &Owner,
        paired: Option<AddressIndex>,
        key: &InternalKey,
        compiled: &CompiledPool,
    ) -> u64 {
        if !compiled.gives_single_ports() {
            return self.subscriber_ports_left(owner.slot, paired, key, compiled);
        }
        let free = |address: AddressIndex| {
            if compiled.has_guarantees() {
                return self.left_beside_guarantees(owner.slot, compiled, address, key);
            }
            u64::from(self.snapshot.ports.free_of_class(address, key.protocol, port_class(key.port, compiled)))
        };
        match paired {
            Some(address) => free(address),
            None => self.snapshot.choices(compiled).iter().map(|address| free(*address)).sum(),
        }
    }

    fn subscriber_ports_left(
        &self,
        slot: Option<u32>,
        mut paired: Option<AddressIndex>,
        key: &InternalKey,
        compiled: &CompiledPool,
    ) -> u64 {
        let (ports, protocol) = (&self.snapshot.ports, key.protocol);
        let left = |range: PortRange| {
            u64::from(ports.available_within(&range, protocol) - ports.used_within(&range, protocol))
        };
        let mut free = 0;
        if let Some(slice) = self.slice_of(compiled, key.address).filter(|_| compiled.slice_ports != 0) {
            // Ports in its own blocks are counted with the block.
            free += u64::from(ports.free_within(&slice, protocol));
            paired = Some(slice.address);
        }
        let mut count = 0;
        for block in self.serving_blocks(slot, compiled) {
            free += left(PortRange::of_block(block));
            count += 1;
        }
        if let Some(blocks) = compiled.blocks {
            let may_have = blocks.per_subscriber_max.saturating_sub(count);
            let there = |address| u64::from(ports.blocks_free(&range_of(&blocks, address), blocks.size));
            let blocks_free = match paired {
                Some(address) => there(address),
                None => self.snapshot.choices(compiled).iter().map(|address| there(*address)).sum(),
            };
            free += blocks_free.min(u64::from(may_have)) * u64::from(blocks.size.ports());
        }
        free
    }
}
