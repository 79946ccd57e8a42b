//! Which control sessions the gateways read.

use alg::AlgId;

use crate::settings::Settings;
use crate::time::Duration;
use crate::types::PoolId;
use crate::types::Protocol;

#[derive(Debug)]
pub(crate) struct CompiledGateway {
    pub(crate) alg: AlgId,
    ports: Box<[u16]>,
    pub(crate) disabled: u8,
    pools: Box<[bool]>,
    classes: Box<[bool]>,
    pub(crate) expectations_per_subscriber: u32,
    pub(crate) timeout: Duration,
}

impl CompiledGateway {
    pub(crate) fn serves(&self, pool: PoolId, class: u16) -> bool {
        self.pools.get(pool.index()).is_some_and(|serves| *serves)
            && self.classes.get(usize::from(class)).is_some_and(|serves| *serves)
    }
}

#[derive(Debug)]
pub(crate) struct Gateways(Box<[CompiledGateway]>);

impl Gateways {
    pub(crate) fn new(settings: &Settings) -> Gateways {
        let compiled = settings.gateways.iter().map(|gateway| {
            let serves = |names: &[String], name: &str| names.is_empty() || names.iter().any(|known| known == name);
            let by_class = |own: &Option<Vec<AlgId>>| {
                own.as_ref().map_or(gateway.serves_everyone, |own| own.contains(&gateway.alg))
            };
            let classes = settings.classes.iter().map(|class| by_class(&class.gateways));
            CompiledGateway {
                alg: gateway.alg,
                ports: gateway.ports.clone().into_boxed_slice(),
                disabled: gateway.disabled,
                pools: settings.pools.iter().map(|pool| serves(&gateway.pools, &pool.name)).collect(),
                classes: core::iter::once(gateway.serves_everyone).chain(classes).collect(),
                expectations_per_subscriber: gateway.expectations_per_subscriber,
                timeout: gateway.timeout,
            }
        });
        Gateways(compiled.collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CompiledGateway> {
        self.0.iter()
    }

    pub(crate) fn of(&self, alg: AlgId) -> Option<&CompiledGateway> {
        self.iter().find(|gateway| gateway.alg == alg)
    }

    pub(crate) fn find(&self, protocol: Protocol, port: u16, pool: PoolId, class: u16) -> Option<&CompiledGateway> {
        let serves = |gateway: &&CompiledGateway| {
            let transports = gateway.alg.alg().map_or(&[][..], alg::Alg::transports);
            gateway.ports.contains(&port)
                && transports.iter().any(|transport| Protocol::from(*transport) == protocol)
                && gateway.serves(pool, class)
        };
        self.iter().find(serves)
    }
}
