//! A host that grants every want: inside port N becomes external port N + 20,000.

use alg::Alg;
use alg::AlgId;
use alg::Context;
use alg::Endpoint;
use alg::Findings;
use alg::Frame;
use alg::Held;
use alg::Known;
use alg::Memory;
use alg::Passed;
use alg::Reading;
use alg::Segment;
use alg::Step;
use alg::Stream;
use alg::Transport;
use alg::Want;

pub(crate) const INSIDE: [u8; 4] = [10, 0, 0, 1];
pub(crate) const EXTERNAL: [u8; 4] = [198, 51, 100, 7];
pub(crate) const REMOTE: [u8; 4] = [203, 0, 113, 9];

/// One session of a gateway, with all that it has asked for.
pub(crate) struct Host {
    alg: &'static dyn Alg,
    pub(crate) memory: Memory,
    pub(crate) wants: Vec<Want>,
    pub(crate) client_is_inside: bool,
    pub(crate) serves: bool,
    pub(crate) transport: Transport,
    pub(crate) internal: u16,
    pub(crate) disabled: u8,
    pub(crate) time_s: u32,
    pub(crate) is_over: bool,
    /// Refuses all from now on.
    pub(crate) refuses: bool,
    /// Bytes that the gateway was asked about, as often as it was.
    pub(crate) asked: usize,
}

impl Host {
    pub(crate) fn new(name: &str, internal: u16, transport: Transport) -> Host {
        let alg = AlgId::named(name).and_then(AlgId::alg).unwrap();
        Host {
            alg,
            memory: Memory::default(),
            wants: Vec::new(),
            client_is_inside: true,
            serves: false,
            transport,
            internal,
            disabled: 0,
            // Soon beyond the largest.
            time_s: u32::MAX - 10,
            is_over: false,
            refuses: false,
            asked: 0,
        }
    }

    /// One direction of its connection.
    pub(crate) fn stream(&self, first: u32) -> Stream {
        Stream::starting(first).keeping_ahead(self.alg.keeps_ahead())
    }

    fn known(&self) -> Vec<Known> {
        self.wants
            .iter()
            .map(|want| Known { external: granted(want.port), inside: want.port, peer: want.peer })
            .collect()
    }

    fn context<'a>(&self, from_client: bool, known: &'a [Known]) -> Context<'a> {
        Context {
            transport: self.transport,
            from_inside: from_client == self.client_is_inside,
            from_client,
            serves: self.serves || !self.client_is_inside,
            internal: Endpoint { address: u32::from_be_bytes(INSIDE), port: self.internal },
            external: Endpoint { address: u32::from_be_bytes(EXTERNAL), port: granted(self.internal) },
            remote: Endpoint { address: u32::from_be_bytes(REMOTE), port: 5060 },
            known,
            disabled: self.disabled,
            time_s: self.time_s,
        }
    }

    /// One whole message.
    pub(crate) fn message(&mut self, from_client: bool, message: &[u8]) -> Vec<u8> {
        let known = self.known();
        let context = self.context(from_client, &known);
        let mut findings = Findings::default();
        if self.alg.read(&mut self.memory, &context, message, &mut findings) == Reading::Over {
            self.is_over = true;
        }
        let changes = self.answer(&findings, context.external);
        let mut out = vec![0; message.len() + 2048];
        let length = changes.apply(message, &mut out).unwrap();
        out.truncate(length);
        out
    }

    /// See [`Alg::note_unread`].
    pub(crate) fn unread_from_outside(&mut self, part: Option<&[u8]>) {
        let known = self.known();
        let context = self.context(!self.client_is_inside, &known);
        self.alg.note_unread(&mut self.memory, &context, part);
    }

    fn answer(&mut self, findings: &Findings, own: Endpoint) -> alg::Replacements {
        let is_known = |want: &Want| self.wants.iter().any(|known| known.port == want.port);
        let may_have = |want: &Want| !self.refuses && (!want.renews || is_known(want));
        let grant = |want: &Want| may_have(want).then_some(Endpoint { port: granted(want.port), ..own });
        let answers: Vec<_> = findings.wants().iter().map(grant).collect();
        for want in findings.wants() {
            if !self.refuses && !want.renews && !self.wants.contains(want) {
                self.wants.push(*want);
            }
        }
        findings.resolve(own, &answers)
    }

    pub(crate) fn is_sure(&self, from_client: bool, bytes: &[u8]) -> bool {
        self.alg.is_surely_its_own(&self.memory, &self.context(from_client, &self.known()), bytes)
    }

    pub(crate) fn step(&mut self, from_client: bool, bytes: &[u8], seen: usize) -> Step {
        if self.is_over {
            return Step::Over;
        }
        let known = self.known();
        let context = self.context(from_client, &known);
        let frame = self.alg.frame(&mut self.memory, &context, bytes, seen);
        self.asked += match frame {
            // It is framed, then read.
            Frame::Message(length) => length.saturating_sub(seen) + length,
            Frame::Part(length, _) => length.saturating_sub(seen) + length,
            Frame::Skip(_) => 1,
            _ => bytes.len() - seen,
        };
        match frame {
            Frame::More => Step::More,
            Frame::Needs(count) => Step::Needs(count),
            Frame::Skip(count) => Step::Skip(count),
            Frame::Message(length) | Frame::Part(length, _) => {
                let mut findings = Findings::default();
                let reading = self.alg.read(&mut self.memory, &context, &bytes[..length], &mut findings);
                if reading == Reading::Over {
                    self.is_over = true;
                    return Step::Over;
                }
                let changes = self.answer(&findings, context.external);
                match frame {
                    Frame::Part(_, rest) => Step::Part(length, changes, rest),
                    _ => Step::Message(length, changes),
                }
            }
            Frame::Over => {
                self.is_over = true;
                Step::Over
            }
        }
    }
}

pub(crate) fn granted(port: u16) -> u16 {
    port.wrapping_add(20_000)
}

/// A connection of a gateway: both directions, lossless and in order.
pub(crate) struct Talk {
    pub(crate) host: Host,
    streams: [Stream; 2],
    held: [Held; 2],
    sent: [u32; 2],
}

impl Talk {
    pub(crate) fn new(host: Host) -> Talk {
        let streams = [1000, 5000].map(|first| host.stream(first));
        Talk { host, streams, held: [Held::default(), Held::default()], sent: [1000, 5000] }
    }

    pub(crate) fn client(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send(0, bytes)
    }

    pub(crate) fn server(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send(1, bytes)
    }

    fn send(&mut self, way: usize, payload: &[u8]) -> Vec<u8> {
        let segment = Segment { sequence: self.sent[way], payload, fin: false };
        self.sent[way] = self.sent[way].wrapping_add(payload.len() as u32);
        let mut out = vec![0; 16_384];
        let host = &mut self.host;
        let passed = self.streams[way]
            .pass(&mut self.held[way], &segment, &mut out, |bytes, seen| host.step(way == 0, bytes, seen));
        let Passed::On { sequence, length, .. } = passed else { panic!("nothing was lost") };
        // Acknowledged at once, so that corrections never wait.
        let ack = self.streams[way].acknowledge(&mut self.held[way], sequence.wrapping_add(length as u32));
        assert!(ack.is_some(), "it was sent");
        out.truncate(length);
        out
    }
}

/// Sends one direction through a stream, as `arrivals` of (start, end) say, until all has passed.
/// Returns what the receiver has.
pub(crate) fn arrive(host: &mut Host, input: &[u8], arrivals: &[(usize, usize)], acks: bool) -> Vec<u8> {
    const FIRST: u32 = u32::MAX - 700;
    let mut stream = host.stream(FIRST);
    let mut held = Held::default();
    let mut received: Vec<Option<u8>> = Vec::new();
    let mut acked = 0;
    let mut out = vec![0; 16_384];
    let whole = [(0, input.len())];
    // The sender repeats what is not acknowledged until it is.
    let repeats = (0..200).flat_map(|_| whole.iter());
    for &(from, to) in arrivals.iter().chain(repeats) {
        let (from, to) = (from.min(input.len()), to.min(input.len()));
        let segment = Segment { sequence: FIRST.wrapping_add(from as u32), payload: &input[from..to], fin: false };
        let passed = stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen));
        if let Passed::On { sequence, length, .. } = passed {
            let at = sequence.wrapping_sub(FIRST) as i32;
            for (i, byte) in out[..length].iter().enumerate() {
                let Ok(at) = usize::try_from(at + i as i32) else { continue };
                if at < acked {
                    continue;
                }
                if received.len() <= at {
                    received.resize(at + 1, None);
                }
                let known = received[at].get_or_insert(*byte);
                assert_eq!(*known, *byte, "one output byte has one value");
            }
        }
        let contiguous = received.iter().take_while(|byte| byte.is_some()).count();
        if acks {
            acked = contiguous;
            let ack = stream.acknowledge(&mut held, FIRST.wrapping_add(acked as u32)).expect("it was sent");
            assert!(ack.wrapping_sub(FIRST) as usize <= input.len(), "an acknowledgement of what was sent");
            if ack.wrapping_sub(FIRST) as usize == input.len() {
                break;
            }
        } else if to == input.len() && from == 0 && contiguous == received.len() && held.is_empty() {
            break;
        }
    }
    received.into_iter().map(|byte| byte.expect("no hole at the end")).collect()
}

/// A sender that writes piece by piece, and has to wait for acknowledgements in between.
pub(crate) struct Waiting<'a> {
    pub(crate) input: &'a [u8],
    /// Lengths of the segments, in turn.
    pub(crate) writes: &'a [usize],
    /// Segments that may be unacknowledged: ten at the start of a connection with Linux (RFC 6928),
    /// one with Nagle's algorithm (RFC 896).
    pub(crate) window: usize,
    /// Packets of a hundred that are lost.
    pub(crate) lost: u32,
    pub(crate) seed: u32,
    /// A repeated segment has the bytes of those after it, too, as with Linux.
    pub(crate) joins: bool,
}

impl Waiting<'_> {
    /// What the receiver has in the end. It answers what it has already, or what is not next, at
    /// once (RFC 9293 §3.10.7.4), and everything else.
    pub(crate) fn send(&self, host: &mut Host, from_client: bool) -> Vec<u8> {
        const FIRST: u32 = u32::MAX - 700;
        let at = |sequence: u32| usize::try_from(sequence.wrapping_sub(FIRST) as i32).unwrap_or(0);
        let mut writes = self.writes.iter().cycle();
        let mut ends = vec![0];
        while *ends.last().unwrap() < self.input.len() {
            ends.push((ends.last().unwrap() + writes.next().unwrap()).min(self.input.len()));
        }
        // xorshift32 of Marsaglia.
        let mut random = self.seed | 1;
        let mut is_lost = || {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random % 100 < self.lost
        };
        let (mut stream, mut held, mut out) = (host.stream(FIRST), Held::default(), vec![0; 32_768]);
        let mut received: Vec<Option<u8>> = Vec::new();
        // Bytes that are acknowledged, and segments that were sent.
        let (mut acked, mut sent, mut timeouts) = (0, 0, 0);
        while acked < self.input.len() {
            let first = ends.iter().rposition(|end| *end <= acked).unwrap();
            let may_send = sent < ends.len() - 1 && sent < first + self.window;
            // After a timeout, only what has no answer.
            let (from, to) = if may_send {
                sent += 1;
                (ends[sent - 1], ends[sent])
            } else {
                timeouts += 1;
                (acked, if self.joins { ends[sent] } else { ends[first + 1] })
            };
            assert!(timeouts < 100 * ends.len(), "it waits for ever, at {acked} of {}", self.input.len());
            if is_lost() {
                continue;
            }
            let sequence = FIRST.wrapping_add(from as u32);
            let segment = Segment { sequence, payload: &self.input[from..to], fin: false };
            if stream.only_repeats(&held, &segment) {
                let is_sure = host.is_sure(from_client, held.message());
                stream.take_over(&mut held, is_sure);
            }
            let passed = stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(from_client, bytes, seen));
            let Passed::On { sequence, length, .. } = passed else { continue };
            if is_lost() {
                continue;
            }
            let known = received.iter().take_while(|byte| byte.is_some()).count();
            for (i, byte) in out[..length].iter().enumerate() {
                let Ok(place) = usize::try_from(sequence.wrapping_sub(FIRST) as i32 + i as i32) else { continue };
                received.resize(received.len().max(place + 1), None);
                assert_eq!(*received[place].get_or_insert(*byte), *byte, "one output byte has one value");
            }
            let is_empty = length == 0 && sequence == FIRST.wrapping_add(known as u32);
            if is_empty || is_lost() {
                continue;
            }
            let has = received.iter().take_while(|byte| byte.is_some()).count();
            let ack = stream.acknowledge(&mut held, FIRST.wrapping_add(has as u32)).expect("it was sent");
            acked = acked.max(at(ack));
        }
        received.into_iter().map(|byte| byte.expect("no hole at the end")).collect()
    }
}

/// A client whose segments are not acknowledged unless the test says so.
pub(crate) struct Sender {
    stream: Stream,
    held: Held,
    next: u32,
    last: u32,
}

impl Sender {
    pub(crate) fn new() -> Sender {
        Sender { stream: Stream::starting(9), held: Held::default(), next: 9, last: 9 }
    }

    /// The bytes that passed.
    pub(crate) fn send(&mut self, host: &mut Host, payload: &[u8]) -> usize {
        let sequence = self.next;
        self.next = self.next.wrapping_add(payload.len() as u32);
        self.pass(host, sequence, payload)
    }

    /// Sends the last payload again.
    pub(crate) fn repeat(&mut self, host: &mut Host, payload: &[u8]) -> usize {
        self.pass(host, self.next.wrapping_sub(payload.len() as u32), payload)
    }

    /// Sends a part of the last payload again.
    pub(crate) fn repeat_part(&mut self, host: &mut Host, payload: &[u8], from: usize, to: usize) -> usize {
        self.pass(host, self.next.wrapping_sub((payload.len() - from) as u32), &payload[from..to])
    }

    fn pass(&mut self, host: &mut Host, sequence: u32, payload: &[u8]) -> usize {
        let mut out = vec![0; 16_384];
        let segment = Segment { sequence, payload, fin: false };
        let passed = self.stream.pass(&mut self.held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen));
        let Passed::On { sequence, length, .. } = passed else { panic!("nothing is missing") };
        self.last = sequence.wrapping_add(length as u32);
        length
    }

    /// Bytes that wait.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn acknowledge(&mut self) {
        assert!(self.stream.acknowledge(&mut self.held, self.last).is_some(), "it was sent");
    }
}
