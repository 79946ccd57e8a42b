//! Returns ports without endpoint-dependent sessions to their pool (ADR 11).

use crate::external::ports::Unshared;
use crate::shard::Ledger;
use crate::state::shared_ports::Group;
use crate::state::shared_ports::SharedPort;
use crate::steps::port_choice::port_class;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::upkeep::walk::Pace;

impl View<'_> {
    /// Seconds that a port stays shared without sessions: as long as the last five-tuples are held
    /// down.
    fn idle_seconds(&self, address: AddressIndex) -> u32 {
        let compiled = self.snapshot.compiled_pool(address);
        let hold_down = if compiled.reuse_at_once.filtered { Duration::ZERO } else { compiled.reuse_delay };
        u32::try_from(hold_down.as_micros().div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }

    /// Shared ports that this worker owns. Slow, for people and tests.
    pub fn shared_ports_len(&self) -> usize {
        let records = (1..self.state.shared_ports.walk_end()).filter_map(|slot| self.state.shared_ports.get(slot));
        let is_own = |record: &&SharedPort| {
            let (group, port) = (record.group(), record.port());
            let owner = self.snapshot.ports.lookup(group.address(), group.protocol(), port);
            owner == Some((self.worker, MappingIndex::SHARED))
        };
        records.filter(is_own).count()
    }
}

impl Ledger {
    pub(in crate::shard) fn sweep_shared_ports(&mut self, now: Instant, elapsed: u64) {
        let end = self.state.shared_ports.walk_end();
        for slot in self.upkeep.sweep.shared_ports.next(Pace::RECORDS.due(end, elapsed), end) {
            let Some(group) = self.state.shared_ports.get(slot).map(SharedPort::group) else { continue };
            if self.state.shared_ports.is_idle_for(slot, self.view().idle_seconds(group.address()), now) {
                self.drop_shared_port(now, slot);
            }
        }
    }

    /// Needs no hold-down after the idle time. Other workers may still use the port.
    fn drop_shared_port(&mut self, now: Instant, slot: u32) {
        let Some(record) = self.state.shared_ports.get(slot) else { return };
        let (group, port) = (record.group(), record.port());
        let (address, protocol) = (group.address(), group.protocol());
        let owner = self.shared.ports.lookup(address, protocol, port);
        if owner != Some((self.worker, MappingIndex::SHARED)) {
            // Its owner frees it.
            self.state.shared_ports.remove(slot);
            return;
        }
        match self.shared.ports.unshare(address, protocol, port, self.worker) {
            Unshared::InUse => {}
            Unshared::WasInUse => self.state.shared_ports.begin_idling(slot, now),
            Unshared::Vacant => {
                self.state.shared_ports.remove(slot);
                if let Some(between_workers) = &self.shared.between_workers {
                    between_workers.map.remove(group, port);
                }
                self.give_back_port(address, protocol, port);
            }
        }
    }

    /// At once, because the other instance has held it down.
    pub(in crate::shard) fn unshare_for_install(&mut self, address: AddressIndex, protocol: Protocol, port: u16) {
        let Some((home, MappingIndex::SHARED)) = self.shared.ports.lookup(address, protocol, port) else { return };
        // The first call may find that another worker used the port until recently.
        let is_vacant = (0..2).any(|_| self.shared.ports.unshare(address, protocol, port, home) == Unshared::Vacant);
        if is_vacant {
            if let Some(between_workers) = &self.shared.between_workers {
                between_workers
                    .map
                    .remove(Group::new(address, protocol, port_class(port, self.shared.compiled_pool(address))), port);
            }
            self.give_back_port(address, protocol, port);
        }
    }
}
