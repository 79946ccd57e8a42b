//! The limits that records about refusals name.

use nat::Verdict;
use nat::event::Event;
use nat::settings::Class;
use nat::settings::SubscriberLimits;
use nat::types::HostNumber;

/// The limits of the current configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quotas {
    /// Sessions of a worker.
    pub sessions: u32,
    /// Mappings of a worker.
    pub mappings: u32,
    /// Subscribers of a worker.
    pub subscribers: u32,
    /// Fragmented datagrams that a worker follows.
    pub fragmented_datagrams: u32,
    /// Fragments that wait for their first one, of a worker.
    pub fragments_held: u32,
    /// Limits of subscribers without a class.
    pub common: SubscriberLimits,
    /// Classes of subscribers.
    pub classes: Vec<Class>,
}

impl Quotas {
    /// Those of these settings.
    pub fn of(settings: &nat::Settings) -> Quotas {
        let limits = &settings.limits;
        Quotas {
            sessions: limits.mappings_max.saturating_add(limits.extra_sessions_max),
            mappings: limits.mappings_max,
            subscribers: limits.subscribers_max,
            fragmented_datagrams: limits.fragmented_datagrams_max,
            fragments_held: limits.fragments_held_max,
            common: settings.subscriber,
            classes: settings.classes.clone(),
        }
    }

    /// The limit of the subscriber that a refusal is about.
    pub(crate) fn of_subscriber(&self, event: &Event, verdict: Verdict) -> u32 {
        let in_realm = |class: &&Class| class.realms.is_empty() || class.realms.contains(&event.realm);
        let length = |class: &Class| {
            let prefixes = class.subscribers.iter().filter(|prefix| prefix.contains(event.subscriber));
            prefixes.map(|prefix| prefix.length()).max()
        };
        // Classes are of IPv4 subscribers.
        let is_ipv4 = !HostNumber::from(event.subscriber).is_ipv6();
        let classes = self.classes.iter().filter(|class| is_ipv4 && in_realm(class));
        let longest = classes.filter_map(|class| Some((length(class)?, class))).max_by_key(|(length, _)| *length);
        let limits = longest.map_or(&self.common, |(_, class)| &class.limits);
        match (verdict, event.protocol) {
            (Verdict::SubscriberPortQuota, Some(protocol)) => limits.ports_max[protocol.index()],
            _ => limits.sessions_max,
        }
    }
}
