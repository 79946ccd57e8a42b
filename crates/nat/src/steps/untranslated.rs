//! Packets to addresses behind no pool, without ports, and to Natrix itself.

use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::destination_is_valid;
use crate::policy::rules::RuleBook;
use crate::policy::rules::RuleId;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::settings::RuleAction;
use crate::snapshot::addresses::Local;
use crate::snapshot::shared::NextHop;
use crate::steps::call::without_call;
use crate::steps::inbound::Act;
use crate::steps::inbound::Decided;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::Via;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Way;
use crate::steps::packet_filter::Judged;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::steps::way::NoWay;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalAnswer {
    EchoReply,
    /// By the server of `shard/port_control.rs`.
    PortControl,
    /// Ends a traceroute.
    PortUnreachable,
}

/// A packet without ports, from inside.
pub(crate) struct Portless {
    /// `None` if the filters were not asked. Counted however the packet ends.
    pub(crate) judged: Option<Judged>,
    pub(crate) ruling: Option<Ruling>,
    /// By the mapping of a call.
    pub(crate) leaves: Result<(u32, Way), Ending>,
}

impl View<'_> {
    pub(crate) fn decide_local(&self, from: Facing, parsed: &Parsed) -> Result<LocalAnswer, Verdict> {
        self.check_source(from, parsed.source).map_or(Ok(()), Err)?;
        match parsed.class {
            Class::IcmpRequest if self.snapshot.settings().icmp.answer_echo => Ok(LocalAnswer::EchoReply),
            Class::Udp if self.is_port_control(parsed) => self.decide_port_control(from, parsed),
            // The kernel may have a socket there.
            Class::Udp if self.is_kernels(from, parsed) => Err(Verdict::LocalIgnored),
            Class::Udp => Ok(LocalAnswer::PortUnreachable),
            _ => Err(Verdict::LocalIgnored),
        }
    }

    fn is_kernels(&self, from: Facing, parsed: &Parsed) -> bool {
        matches!(
            self.local_to(from, parsed.destination),
            Some(Local::Own(interface) | Local::OwnAndPool(interface, _)) if self.snapshot.has_kernel(interface)
        )
    }

    fn is_port_control(&self, parsed: &Parsed) -> bool {
        let policy = &self.snapshot.settings().port_control;
        parsed.destination_port == pcp::SERVER_PORT && (policy.pcp || policy.nat_pmp)
    }

    /// Port control is served only at an inside address of the sender's realm (RFC 6887 §8.2, RFC
    /// 6886 §3.1).
    fn decide_port_control(&self, from: Facing, parsed: &Parsed) -> Result<LocalAnswer, Verdict> {
        let is_own = match self.local_to(from, parsed.destination) {
            Some(Local::Own(interface) | Local::OwnAndPool(interface, _)) => self.snapshot.facing(interface) == from,
            _ => false,
        };
        if is_own && from.side == Side::Inside { Ok(LocalAnswer::PortControl) } else { Err(Verdict::LocalIgnored) }
    }

    #[cold]
    pub(crate) fn leave_portless<T: Report>(
        &self,
        now: Instant,
        realm: RealmId,
        parsed: &Parsed,
        report: &mut T,
    ) -> Portless {
        let (mut judged, mut ruling) = (None, None);
        let is_call = parsed.class == Class::Call;
        let called = if is_call { self.call_out(now, realm, parsed, &mut judged, report) } else { None };
        let leaves = called.unwrap_or_else(|| {
            let noted = (&mut judged, &mut ruling);
            self.pass_portless(Facing::inside(realm), parsed, noted, report).and_then(|hop| Err(Ending::Pass(hop)))
        });
        Portless { judged, ruling, leaves }
    }

    #[cold]
    pub(super) fn enter_portless<T: Report>(
        &self,
        packet: &Inbound<'_>,
        decided: &mut Decided,
        report: &mut T,
    ) -> Result<Act, Act> {
        if packet.parsed.class == Class::Call
            && let Some(act) = self.call_in(packet, &mut decided.judged, report)
        {
            return act;
        }
        if packet.via == Via::Hairpin {
            return Err(Act::Drop(Verdict::ProtocolUnsupported));
        }
        let noted = (&mut decided.judged, &mut decided.ruling);
        let hop = self.pass_portless::<_, Act>(Facing::OUTSIDE, packet.parsed, noted, report)?;
        Ok(Act::Pass { hop })
    }

    fn pass_portless<T: Report, E: From<Verdict> + From<NoWay>>(
        &self,
        from: Facing,
        parsed: &Parsed,
        (judged, noted): (&mut Option<Judged>, &mut Option<Ruling>),
        report: &mut T,
    ) -> Result<NextHop, E> {
        let parsed = &without_call(parsed);
        self.check_portless(from, parsed.source, parsed.destination)?;
        let is_out = from.side == Side::Inside;
        let passes = &self.snapshot.passes;
        let (key, towards, ruling) = if is_out {
            let key = RuleKey::outbound(from.realm, parsed);
            (key, Facing::OUTSIDE, passes.ruling(&key))
        } else {
            let passing = self.passes_in(passes, |realm| RuleKey::inbound(realm, parsed));
            let (realm, ruling) = passing.ok_or(Verdict::DestinationNotPool)?;
            (RuleKey::inbound(realm, parsed), Facing::inside(realm), ruling)
        };
        self.report_pass_rule(ruling.rule.ok_or(Verdict::ProtocolUnsupported)?, report);
        judged.insert(self.judge(is_out, key, true, report)).check()?;
        *noted = Some(ruling);
        Ok(self.way(towards, parsed.destination, parsed, report)?)
    }

    /// Refuses addresses between which no rule can pass packets.
    pub(super) fn check_portless(&self, from: Facing, source: u32, destination: u32) -> Result<(), Verdict> {
        self.check_source(from, source).map_or(Ok(()), Err)?;
        let is_out = from.side == Side::Inside;
        let local = if is_out { self.local_to(from, destination) } else { self.local.lookup(destination) };
        match local {
            Some(Local::Own(_)) => Err(Verdict::LocalIgnored),
            Some(Local::OwnAndPool(..)) if is_out => Err(Verdict::LocalIgnored),
            Some(_) if !is_out => Err(Verdict::ProtocolUnsupported),
            _ => Ok(()),
        }
    }

    pub(super) fn report_pass_rule<T: Report>(&self, rule: RuleId, report: &mut T) {
        if T::LISTENS
            && let Some(position) = self.snapshot.passes.set().position(rule)
        {
            report.step(|| Step::PassRule(position));
        }
    }

    #[cold]
    pub(super) fn enter_untranslated<T: Report>(
        &self,
        packet: &Inbound<'_>,
        local: Option<Local>,
        decided: &mut Decided,
        report: &mut T,
    ) -> Result<Act, Act> {
        let parsed = packet.parsed;
        match local {
            // Inside addresses have no meaning outside; an answer would leak one.
            Some(Local::Own(interface)) if self.snapshot.side(interface) == Side::Outside => {
                report.step(|| Step::OwnAddress(packet.external().address));
                return Ok(Act::Local(self.decide_local(Facing::OUTSIDE, parsed)));
            }
            Some(Local::Broadcast(_)) => return Err(Act::Drop(Verdict::DestinationInvalid)),
            _ if !destination_is_valid(parsed.destination) => return Err(Act::Drop(Verdict::DestinationInvalid)),
            Some(_) => return Err(Act::Drop(Verdict::DestinationNotPool)),
            None => {}
        }
        let rules = &self.snapshot.rules;
        let passing = self.passes_in(rules, |realm| RuleKey::inbound(realm, parsed));
        let (realm, ruling) = passing.ok_or(Verdict::DestinationNotPool)?;
        self.check_stranger(packet)?;
        decided.judged.insert(self.judge(false, RuleKey::inbound(realm, parsed), true, report)).check()?;
        decided.ruling = Some(ruling);
        if T::LISTENS
            && let Some(position) = ruling.rule.and_then(|rule| rules.set().position(rule))
        {
            report.step(|| Step::Rule { position, action: ruling.action });
        }
        let hop = self.way(Facing::inside(realm), parsed.destination, parsed, report)?;
        Ok(Act::Pass { hop })
    }

    /// `None` if rules of several realms pass the packet, which must not reach the wrong
    /// subscriber.
    pub(crate) fn passes_in(&self, rules: &RuleBook, key_in: impl Fn(RealmId) -> RuleKey) -> Option<(RealmId, Ruling)> {
        if !rules.passes() {
            return None;
        }
        let mut fitting = (0..self.snapshot.settings().realms()).filter_map(|number| {
            let realm = RealmId(number as u16);
            let key = key_in(realm);
            self.snapshot.route_in(realm, key.source().to_bits())?;
            let ruling = rules.ruling(&key);
            (ruling.action == RuleAction::NoTranslation).then_some((realm, ruling))
        });
        fitting.next().filter(|_| fitting.next().is_none())
    }
}
