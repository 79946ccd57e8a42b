//! The running instance, as `find` asks it.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::sync::Arc;

use control::Fault;
use control::List;
use control::Mapping;
use control::Page;
use control::Session;
use control::Subscriber;
use lookup::live::Live;
use lookup::live::Use;
use nat::Protocol;
use nat::Shared;
use nat::types::Endpoint;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::WorkerId;
use nat::view;
use nat::view::MappingView;
use nat::view::SessionView;
use nat::view::SubscriberView;

use super::convert;
use super::lists;
use super::lists::ALL;
use super::lists::for_each;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;

/// A page without holders says that there are none, so the search for it takes as long as it takes.
const UNLIMITED: Duration = Duration::MAX;

impl Live for Instance {
    fn shared(&self) -> Arc<Shared> {
        Instance::shared(self)
    }

    fn holder(&self, worker: WorkerId, external: Endpoint, protocol: Protocol) -> Result<Option<Mapping>, Fault> {
        let question = Question::Holder { external, protocol, mapping: None };
        let Question::Holder { mapping, .. } = self.ask(worker.index(), question)? else {
            return Err(mismatch(worker.index()));
        };
        Ok(mapping.map(|view| convert::mapping(&self.shared(), &view)))
    }

    fn mappings(&self, list: &List) -> Result<Page<Mapping>, Fault> {
        lists::mappings(self, list, UNLIMITED)
    }

    fn sessions(&self, list: &List) -> Result<Page<Session>, Fault> {
        lists::sessions(self, list, UNLIMITED)
    }

    fn subscribers(&self, list: &List) -> Result<Page<Subscriber>, Fault> {
        lists::subscribers(self, list, UNLIMITED)
    }

    fn uses(
        &self,
        external: Ipv4Addr,
        protocol: Option<Protocol>,
        each: &mut dyn FnMut(RealmId, Ipv4Addr, Use),
    ) -> Result<(), Fault> {
        let filter = view::Filter { external: Some(Prefix::host(external)), protocol, ..view::Filter::default() };
        for worker in 0..self.worker_count() {
            for_each(self, worker, ALL, filter, |view: SubscriberView| {
                let subscriber = convert::subscriber(&self.shared(), &view);
                each(view.realm, view.address, Use::Paired(Box::new(subscriber)));
            })?;
            for_each(self, worker, ALL, filter, |view: MappingView| {
                each(view.realm, view.internal.address, Use::Mapping(view.host.as_ref().map(convert::host)));
            })?;
            for_each(self, worker, view::FLOW_CURSORS, filter, |view: SessionView| {
                // Sessions of mappings follow the last flow.
                if view.shared {
                    each(view.realm, view.internal.address, Use::Flow(view.host.as_ref().map(convert::host)));
                }
            })?;
        }
        Ok(())
    }
}
