//! The hands of the probe: fresh endpoints, packets that can be distinguished, and waiting for what
//! becomes of them.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::HashMap;

use serde::Serialize;
use wire::build;
use wire::tcp::Flags;

use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;
use super::world::World;
use super::world::WorldError;

/// The hosts of the probe. All addresses of a side must lead to the world's end on that side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The first of the hosts inside.
    pub first_inside: Ipv4Addr,
    /// How many there are, one after the other; at least 64.
    pub inside_hosts: u32,
    /// The first of the servers outside.
    pub first_remote: Ipv4Addr,
    /// How many there are, one after the other; at least 4.
    pub remotes: u32,
    /// A router outside that is not one of the servers: ICMP errors come from it.
    pub transit: Ipv4Addr,
}

/// Mappings one inside host is given by the tests, but for those about many: below what any
/// subscriber may have.
const ENDPOINTS_A_HOST: u32 = 8;
/// Inside ports begin here.
const FIRST_PORT: u16 = 20_000;
/// So many there are from there on, every second one.
const PORTS_OF_HOST: u32 = 20_000;
/// Packets sent before what came is looked at, when many are sent.
const BATCH: usize = 32;
/// How often a packet is sent of which nothing is seen, within the patience: a link may lose one.
const SENDS: u32 = 3;
/// What the payload of every packet begins with.
const MARK: &[u8; 8] = b"natrix-p";

/// Why the probe has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The tester itself.
    #[error(transparent)]
    World(#[from] WorldError),
    /// Nothing gets through.
    #[error(
        "device: no datagram gets out and is answered ({sent} sent, {left} came out); see that it runs, translates {inside} and routes {remote}"
    )]
    NothingPasses {
        /// Datagrams sent from inside.
        sent: u32,
        /// Those that came out.
        left: u32,
        /// Where they came from.
        inside: Ipv4Addr,
        /// Where they were sent.
        remote: Ipv4Addr,
    },
    /// It is a router, or has no rule for this host.
    #[error(
        "device: passes what comes from {inside} to {remote} without translating it; see that it translates {inside}"
    )]
    NothingTranslated {
        /// Where a datagram came from, on either side of the device.
        inside: Ipv4Addr,
        /// Where it was sent.
        remote: Ipv4Addr,
    },
}

/// What became of a packet.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The packet where it was waited for.
    pub passed: Option<Seen>,
    /// What else came meanwhile, on either side.
    pub others: Vec<(Side, Seen)>,
}

impl Outcome {
    /// Type and code of an ICMP error that came back to `side`.
    pub fn icmp_error(&self, side: Side) -> Option<(u8, u8)> {
        self.others.iter().find(|(at, seen)| *at == side && seen.is_icmp_error()).and_then(|(_, seen)| seen.icmp)
    }

    /// What became of it, in words; errors are looked for on the side it was sent from.
    pub fn words(&self, from: Side) -> String {
        let reset = self.others.iter().any(|(at, seen)| *at == from && seen.flags.contains(Flags::RST));
        match (&self.passed, self.icmp_error(from)) {
            (Some(seen), _) => format!("arrives as {} -> {}", seen.source, seen.destination),
            (None, Some((icmp_type, code))) => format!("ICMP {icmp_type}/{code} comes back"),
            (None, None) if reset => "a RST comes back".to_owned(),
            (None, None) => "nothing arrives".to_owned(),
        }
    }
}

/// A connection through the NAT, with the next sequence number of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client.
    pub internal: SocketAddrV4,
    /// The client as the server sees it.
    pub external: SocketAddrV4,
    /// The server.
    pub remote: SocketAddrV4,
    /// The client's next sequence number.
    pub client_next: u32,
    /// The server's.
    pub server_next: u32,
}

impl Connection {
    /// A segment of the client, as it leaves it.
    pub fn from_client(&self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        build::tcp(self.internal, self.remote, flags)
            .sequence(self.client_next)
            .acknowledgment(self.server_next)
            .payload(payload)
            .build()
    }

    /// A segment of the server, as it leaves it.
    pub fn from_server(&self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        build::tcp(self.remote, self.external, flags)
            .sequence(self.server_next)
            .acknowledgment(self.client_next)
            .payload(payload)
            .build()
    }
}

/// See the module.
pub struct Prober<'w> {
    world: &'w mut dyn World,
    site: Site,
    patience: Duration,
    endpoints: u32,
    serial: u32,
    random: u64,
    /// Whose each external address is: the first host that was seen with it.
    externals: BTreeMap<Ipv4Addr, Ipv4Addr>,
    is_address_shared: bool,
}

/// External addresses of all flows until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalAddresses {
    /// How many there are.
    pub addresses: usize,
    /// Whether two hosts have the same.
    pub is_shared: bool,
}

impl<'w> Prober<'w> {
    /// On this site. What has not come after `patience` counts as lost; `seed` decides ports and
    /// sequence numbers.
    pub fn new(world: &'w mut dyn World, site: Site, patience: Duration, seed: u64) -> Prober<'w> {
        Prober {
            world,
            site,
            patience,
            endpoints: 0,
            serial: 0,
            random: seed | 1,
            externals: BTreeMap::new(),
            is_address_shared: false,
        }
    }

    /// The site.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// How long a packet is waited for.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.world.now()
    }

    /// A number nobody guesses without the seed (xorshift64).
    pub fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// The n-th host inside, counted round.
    pub fn host(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.site.first_inside.to_bits() + n % self.site.inside_hosts)
    }

    /// An inside endpoint nobody used before, on a host with few others. Its port is 20000 or more,
    /// and even.
    pub fn fresh(&mut self) -> SocketAddrV4 {
        let host = self.fresh_host();
        // Each endpoint of a host has its own range of ports, so that no two are the same.
        let range = PORTS_OF_HOST / ENDPOINTS_A_HOST;
        let port = self.endpoints % ENDPOINTS_A_HOST * range + self.random() % range;
        SocketAddrV4::new(host, FIRST_PORT + port as u16 * 2)
    }

    /// A host with few mappings.
    pub fn fresh_host(&mut self) -> Ipv4Addr {
        self.endpoints += 1;
        self.host(self.endpoints / ENDPOINTS_A_HOST)
    }

    /// A host on which nothing was done yet, as long as there are some, and which is not asked for
    /// anything else: it may be given more than the few mappings of the others.
    pub fn new_host(&mut self) -> Ipv4Addr {
        let number = self.endpoints / ENDPOINTS_A_HOST + 1;
        self.endpoints = number * ENDPOINTS_A_HOST + (ENDPOINTS_A_HOST - 1);
        self.host(number)
    }

    /// As many hosts, as far from one another as there are some.
    pub fn far_hosts(&mut self, count: usize) -> Vec<Ipv4Addr> {
        self.new_host();
        let (first, distance) = (self.endpoints / ENDPOINTS_A_HOST, self.site.inside_hosts / count as u32);
        (0..count as u32).map(|number| self.host(first + number * distance)).collect()
    }

    /// The n-th host of a crowd: in the second half, where no other questions are asked, and in no
    /// order. A NAT that gives out its addresses by a formula gives the same one to some of them.
    pub fn crowd_host(&self, n: u32) -> Ipv4Addr {
        let half = self.site.inside_hosts / 2;
        // Knuth's multiplier, and the upper bits, which are the better ones.
        let number = (n + 1).wrapping_mul(2_654_435_761) >> 8;
        self.host(half + number % half)
    }

    /// External addresses of all flows that were opened until now.
    pub fn external_addresses(&self) -> ExternalAddresses {
        ExternalAddresses { addresses: self.externals.len(), is_shared: self.is_address_shared }
    }

    fn note(&mut self, internal: SocketAddrV4, external: SocketAddrV4) {
        let owner = self.externals.entry(*external.ip()).or_insert(*internal.ip());
        self.is_address_shared |= owner != internal.ip();
    }

    /// An endpoint of the n-th server.
    pub fn remote(&self, n: u32, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from_bits(self.site.first_remote.to_bits() + n % self.site.remotes), port)
    }

    /// A payload no other packet has.
    pub fn payload(&mut self) -> [u8; 16] {
        self.serial += 1;
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(MARK);
        payload[8..12].copy_from_slice(&self.serial.to_be_bytes());
        payload
    }

    /// A datagram with a payload of its own.
    pub fn udp(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        build::udp(from, to).payload(&self.payload()).build()
    }

    /// A SYN with a sequence number of its own.
    pub fn syn(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        let sequence = self.random();
        build::tcp(from, to, Flags::SYN).sequence(sequence).mss(1460).build()
    }

    /// An Echo from an endpoint whose port is the identifier.
    pub fn echo(&mut self, from: SocketAddrV4, to: Ipv4Addr) -> Vec<u8> {
        build::echo_request(*from.ip(), to, from.port()).payload(&self.payload()).build()
    }

    /// The first packet of a flow of this protocol. ICMP has no port at the server.
    pub fn first_packet(&mut self, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        match protocol {
            Protocol::Udp => self.udp(from, to),
            Protocol::Tcp => self.syn(from, to),
            Protocol::Icmp => self.echo(from, *to.ip()),
        }
    }

    /// Sends a packet, and waits for nothing.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), ProbeError> {
        Ok(self.world.send(side, packet)?)
    }

    /// Everything that comes until `until`.
    ///
    /// # Errors
    /// When nothing can be received.
    pub fn collect(&mut self, until: Duration) -> Result<Vec<(Side, Duration, Seen)>, ProbeError> {
        let mut all = Vec::new();
        while let Some(arrival) = self.world.next(until)? {
            all.extend(Seen::read(&arrival.packet).map(|seen| (arrival.side, arrival.at, seen)));
        }
        Ok(all)
    }

    /// The next packet that comes until `until`; None when the time is over.
    ///
    /// # Errors
    /// When nothing can be received.
    pub fn next(&mut self, until: Duration) -> Result<Option<(Side, Duration, Seen)>, ProbeError> {
        while let Some(arrival) = self.world.next(until)? {
            if let Some(seen) = Seen::read(&arrival.packet) {
                return Ok(Some((arrival.side, arrival.at, seen)));
            }
        }
        Ok(None)
    }

    /// Lets time pass. What comes meanwhile is lost.
    ///
    /// # Errors
    /// When nothing can be received.
    pub fn sleep(&mut self, time: Duration) -> Result<(), ProbeError> {
        let until = self.now() + time;
        self.collect(until).map(drop)
    }

    /// Sends a packet and waits until one that `is_it` comes out on `to`, or the patience is over.
    /// While nothing at all comes it is sent again, as any sender would.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn send_and_watch(
        &mut self,
        from: Side,
        packet: &[u8],
        to: Side,
        is_it: impl Fn(&Seen) -> bool,
    ) -> Result<Outcome, ProbeError> {
        let mut outcome = Outcome::default();
        let begun = self.now();
        for sent in 1..=SENDS {
            // What is answered, if by something else, is not sent again.
            if outcome.others.is_empty() {
                self.send(from, packet)?;
            }
            while let Some((side, _, seen)) = self.next(begun + self.patience * sent / SENDS)? {
                if side == to && is_it(&seen) {
                    outcome.passed = Some(seen);
                    return Ok(outcome);
                }
                outcome.others.push((side, seen));
            }
        }
        Ok(outcome)
    }

    /// Sends a packet through the NAT to the other side.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn pass(&mut self, from: Side, packet: &[u8]) -> Result<Outcome, ProbeError> {
        let Some(sent) = Seen::read(packet) else { return Ok(Outcome::default()) };
        self.send_and_watch(from, packet, from.other(), |seen| seen.is(&sent))
    }

    /// The external endpoint of a flow from inside, opened by its first packet; None when that does
    /// not come out.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn open(
        &mut self,
        protocol: Protocol,
        from: SocketAddrV4,
        to: SocketAddrV4,
    ) -> Result<Option<SocketAddrV4>, ProbeError> {
        let packet = self.first_packet(protocol, from, to);
        let external = self.pass(Side::Inside, &packet)?.passed.map(|seen| seen.source);
        if let Some(external) = external {
            self.note(from, external);
        }
        Ok(external)
    }

    /// Opens many flows, and gives their external endpoints in the same order. The patience begins
    /// anew with each packet that comes.
    ///
    /// # Errors
    /// When they cannot be sent.
    pub fn open_many(
        &mut self,
        protocol: Protocol,
        flows: &[(SocketAddrV4, SocketAddrV4)],
    ) -> Result<Vec<Option<SocketAddrV4>>, ProbeError> {
        let mut found = vec![None; flows.len()];
        let mut waiting = HashMap::new();
        let mut take = |arrival: Option<(Side, Duration, Seen)>, waiting: &mut HashMap<_, usize>| {
            let Some((side, _, seen)) = arrival else { return false };
            if side == Side::Outside
                && let Some(index) = waiting.remove(&(seen.sequence, seen.payload))
            {
                found[index] = Some(seen.source);
            }
            true
        };
        for (batch, some) in flows.chunks(BATCH).enumerate() {
            for (place, (from, to)) in some.iter().enumerate() {
                let packet = self.first_packet(protocol, *from, *to);
                if let Some(seen) = Seen::read(&packet) {
                    waiting.insert((seen.sequence, seen.payload), batch * BATCH + place);
                }
                self.send(Side::Inside, &packet)?;
            }
            // No faster than the device forwards, as long as it does.
            let until = self.now() + Duration::from_millis(2);
            while !waiting.is_empty() {
                let arrival = self.next(until)?;
                if !take(arrival, &mut waiting) {
                    break;
                }
            }
        }
        while !waiting.is_empty() {
            let until = self.now() + self.patience;
            let arrival = self.next(until)?;
            if !take(arrival, &mut waiting) {
                break;
            }
        }
        for ((from, _), external) in flows.iter().zip(&found) {
            if let Some(external) = external {
                self.note(*from, *external);
            }
        }
        Ok(found)
    }

    /// Sends packets as fast as they leave, and gives what comes out on the other side. The
    /// patience begins anew with each packet that comes.
    ///
    /// # Errors
    /// When they cannot be sent.
    pub fn send_many(&mut self, side: Side, packets: &[Vec<u8>]) -> Result<Vec<Seen>, ProbeError> {
        let mut arrived = Vec::new();
        for batch in packets.chunks(BATCH) {
            for packet in batch {
                self.send(side, packet)?;
            }
            // The tester takes what there is, so that it is not the one that loses.
            while let Some((at, _, seen)) = self.next(self.now())? {
                arrived.extend((at == side.other()).then_some(seen));
            }
        }
        while let Some((at, _, seen)) = self.next(self.now() + self.patience)? {
            arrived.extend((at == side.other()).then_some(seen));
        }
        Ok(arrived)
    }

    /// Whether a datagram of `remote` to `external` reaches `internal`.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn udp_reaches(
        &mut self,
        remote: SocketAddrV4,
        external: SocketAddrV4,
        internal: SocketAddrV4,
    ) -> Result<bool, ProbeError> {
        let packet = self.udp(remote, external);
        Ok(self.pass(Side::Outside, &packet)?.passed.is_some_and(|seen| seen.destination == internal))
    }

    /// Connects a client to a server; None when a segment of the handshake is lost.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn connect(&mut self, internal: SocketAddrV4, remote: SocketAddrV4) -> Result<Option<Connection>, ProbeError> {
        let Some(mut connection) = self.half_open(internal, remote)? else { return Ok(None) };
        let answer = connection.from_server(Flags::SYN | Flags::ACK, &[]);
        if self.pass(Side::Outside, &answer)?.passed.is_none() {
            return Ok(None);
        }
        connection.server_next = connection.server_next.wrapping_add(1);
        let ack = connection.from_client(Flags::ACK, &[]);
        Ok(self.pass(Side::Inside, &ack)?.passed.map(|_| connection))
    }

    /// Sends the SYN of a client only. The server's next sequence number is that of its SYN.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn half_open(
        &mut self,
        internal: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Result<Option<Connection>, ProbeError> {
        let syn = self.syn(internal, remote);
        let Some(sent) = Seen::read(&syn) else { return Ok(None) };
        let server_next = self.random();
        Ok(self.pass(Side::Inside, &syn)?.passed.map(|seen| Connection {
            internal,
            external: seen.source,
            remote,
            client_next: sent.sequence.wrapping_add(1),
            server_next,
        }))
    }
}
