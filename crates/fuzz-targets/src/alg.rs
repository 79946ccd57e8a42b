//! Claims about the gateways' parsers and about streams whose payload they change.

use ::alg::Alg;
use ::alg::AlgId;
use ::alg::Context;
use ::alg::EDITS_MAX;
use ::alg::Endpoint;
use ::alg::Findings;
use ::alg::Frame;
use ::alg::Held;
use ::alg::Known;
use ::alg::MESSAGE_MAX;
use ::alg::Memory;
use ::alg::PORT_MIN;
use ::alg::Passed;
use ::alg::Reading;
use ::alg::Segment;
use ::alg::Step;
use ::alg::Stream;
use ::alg::TEXT_MAX;
use ::alg::Transport;
use ::alg::WANTS_MAX;
use ::alg::Want;
use ::alg::WantKind;

const FIRST: u32 = u32::MAX - 100;
const KNOWN: [Known; 1] = [Known { external: 25_004, inside: 5004, peer: Some(7) }];

struct Session {
    alg: &'static dyn Alg,
    memory: Memory,
    client_is_inside: bool,
    transport: Transport,
    is_over: bool,
    wants: Vec<Want>,
    time_s: u32,
}

impl Session {
    /// The lowest bits of `options`: which side the client is on, and the transport.
    fn new(name: &str, options: u8) -> Option<Session> {
        let alg = AlgId::named(name).and_then(AlgId::alg)?;
        let transport = *alg.transports().get(usize::from(options >> 1) % alg.transports().len())?;
        let client_is_inside = options & 1 == 0;
        Some(Session {
            alg,
            memory: Memory::default(),
            client_is_inside,
            transport,
            is_over: false,
            wants: Vec::new(),
            time_s: 0,
        })
    }

    fn stream(&self) -> Stream {
        Stream::starting(FIRST).keeping_ahead(self.alg.keeps_ahead())
    }

    fn with_context<R>(
        &mut self,
        from_client: bool,
        act: impl FnOnce(&'static dyn Alg, &mut Memory, &Context<'_>) -> R,
    ) -> R {
        let context = Context {
            transport: self.transport,
            from_inside: from_client == self.client_is_inside,
            from_client,
            serves: !self.client_is_inside,
            internal: Endpoint { address: 0x0a00_0001, port: 5060 },
            external: Endpoint { address: 0xc633_6407, port: 25_060 },
            remote: Endpoint { address: 0xcb00_7109, port: 5060 },
            known: &KNOWN,
            disabled: 0,
            time_s: self.time_s,
        };
        act(self.alg, &mut self.memory, &context)
    }

    /// Reads a message, and checks what is claimed about it.
    fn read(&mut self, from_client: bool, message: &[u8]) -> Option<::alg::Replacements> {
        // The same for each cutting.
        self.time_s = self.time_s.wrapping_add(message.len() as u32);
        let mut findings = Findings::default();
        let awaited = self.memory.awaited;
        let reading =
            self.with_context(from_client, |alg, memory, context| alg.read(memory, context, message, &mut findings));
        let from_inside = from_client == self.client_is_inside;
        if !findings.registered().is_empty() {
            assert!(
                !from_inside && self.memory.awaited != awaited,
                "it answers a request, which is not answered again"
            );
        }
        for (port, _) in findings.registered() {
            assert!([5060, KNOWN[0].inside].contains(port), "only what the session knows");
        }
        assert!(findings.wants().len() <= WANTS_MAX);
        for want in findings.wants() {
            if want.kind == WantKind::Call {
                let is_ours = KNOWN.iter().any(|known| known.inside == want.port);
                assert!(from_inside || is_ours, "the outside speaks of calls of the inside");
                continue;
            }
            assert!(from_inside, "only the inside asks");
            assert!(want.port >= PORT_MIN);
        }
        let own = Endpoint { address: 0xc633_6407, port: 25_060 };
        let granted: Vec<_> =
            findings.wants().iter().map(|want| Some(Endpoint { port: want.port ^ 0x4000, ..own })).collect();
        let changes = findings.resolve(own, &granted);
        let mut end = 0;
        for change in changes.as_slice() {
            assert!(usize::from(change.at) >= end, "in order and apart");
            end = usize::from(change.at) + usize::from(change.length);
            assert!(end <= message.len() && change.length > 0);
        }
        let mut out = vec![0; message.len() + EDITS_MAX * TEXT_MAX];
        assert!(changes.apply(message, &mut out).is_some());
        for want in findings.wants() {
            if !self.wants.contains(want) {
                self.wants.push(*want);
            }
        }
        self.is_over |= reading == Reading::Over;
        (!self.is_over).then_some(changes)
    }

    fn step(&mut self, from_client: bool, bytes: &[u8], seen: usize) -> Step {
        if self.is_over {
            return Step::Over;
        }
        let frame = self.with_context(from_client, |alg, memory, context| alg.frame(memory, context, bytes, seen));
        match frame {
            Frame::More => Step::More,
            Frame::Needs(count) => Step::Needs(count),
            Frame::Skip(count) => Step::Skip(count),
            Frame::Message(length) => {
                assert!((1..=bytes.len().min(MESSAGE_MAX)).contains(&length));
                self.read(from_client, &bytes[..length]).map_or(Step::Over, |changes| Step::Message(length, changes))
            }
            Frame::Part(length, rest) => {
                assert!((1..=bytes.len().min(MESSAGE_MAX)).contains(&length));
                self.read(from_client, &bytes[..length]).map_or(Step::Over, |changes| Step::Part(length, changes, rest))
            }
            Frame::Over => {
                self.is_over = true;
                Step::Over
            }
        }
    }
}

/// Messages of both sides, each with its side in the byte before it.
fn messages(name: &str, bytes: &[u8]) {
    let Some((&options, rest)) = bytes.split_first() else { return };
    let Some(mut session) = Session::new(name, options) else { return };
    for (i, message) in rest.split(|byte| *byte == 0xfe).enumerate() {
        session.read(i % 2 == usize::from(options >> 2 & 1), message);
    }
    conversation(name, options, rest);
}

/// What a stream in order must become: each message with the changes that its gateway asked for,
/// and nothing else changed.
#[derive(Default)]
struct Expected {
    /// All bytes sent so far.
    input: Vec<u8>,
    /// How many of them are in `output`.
    at: usize,
    /// How many of the next ones pass unread.
    skip: usize,
    /// Corrections since the last acknowledgement.
    corrections: usize,
    output: Vec<u8>,
}

impl Expected {
    fn copy(&mut self, end: usize) {
        self.output.extend_from_slice(&self.input[self.at..end]);
        self.at = end;
    }

    fn skip(&mut self) {
        let count = self.skip.min(self.input.len() - self.at);
        self.copy(self.at + count);
        self.skip -= count;
    }

    fn note(&mut self, step: &Step) {
        match step {
            Step::Skip(count) => {
                self.skip = *count;
                self.skip();
            }
            // More corrections than this wait for an acknowledgement, and the message with them.
            Step::Message(length, changes) | Step::Part(length, changes, _)
                if self.corrections + changes.as_slice().len() <= ::alg::CORRECTIONS_MAX =>
            {
                self.corrections += changes.as_slice().len();
                let message = &self.input[self.at..self.at + length];
                let mut out = vec![0; length + EDITS_MAX * TEXT_MAX];
                let written = changes.apply(message, &mut out);
                assert!(written.is_some(), "there is room");
                self.output.extend_from_slice(&out[..written.unwrap_or_default()]);
                self.at += length;
                if let Step::Part(.., rest) = step {
                    self.skip = *rest;
                    self.skip();
                }
            }
            Step::More | Step::Needs(_) | Step::Message(..) | Step::Part(..) | Step::Over => {}
        }
    }
}

/// The same bytes as streams, in order: nothing is lost or repeated, and only what a gateway asked
/// for is changed.
fn conversation(name: &str, options: u8, bytes: &[u8]) {
    let Some(mut session) = Session::new(name, options) else { return };
    let mut streams = [session.stream(), session.stream()];
    let mut held = [Held::default(), Held::default()];
    let mut expected = [Expected::default(), Expected::default()];
    let mut received = [Vec::new(), Vec::new()];
    let mut out = vec![0; 2 * MESSAGE_MAX + bytes.len() + EDITS_MAX * TEXT_MAX * 64];
    let payloads = bytes.split(|byte| *byte == 0xfe).enumerate().filter(|(_, payload)| !payload.is_empty());
    for (i, payload) in payloads {
        let way = i % 2;
        let (stream, held, expected, received) =
            (&mut streams[way], &mut held[way], &mut expected[way], &mut received[way]);
        expected.input.extend_from_slice(payload);
        expected.skip();
        // What did not fit is repeated.
        loop {
            let from = stream.next().wrapping_sub(FIRST) as usize + held.len();
            let sequence = FIRST.wrapping_add(from as u32);
            let segment = Segment { sequence, payload: &expected.input.clone()[from..], fin: false };
            let passed = stream.pass(held, &segment, &mut out, |bytes, seen| {
                let step = session.step(way == 0, bytes, seen);
                expected.note(&step);
                step
            });
            assert!(matches!(passed, Passed::On { fin: false, .. }), "in order, and without an end");
            let Passed::On { sequence, length, .. } = passed else { return };
            if length > 0 {
                assert_eq!(sequence, FIRST.wrapping_add(received.len() as u32), "the output has no gap");
                received.extend_from_slice(&out[..length]);
            }
            let ack = stream.acknowledge(held, FIRST.wrapping_add(received.len() as u32));
            assert!(ack.is_some(), "what was sent can be acknowledged");
            expected.corrections = 0;
            let taken = stream.next().wrapping_sub(FIRST) as usize + held.len();
            if taken == expected.input.len() {
                break;
            }
            assert!(taken > from || length > 0, "a repetition gets further");
        }
        if stream.is_over() {
            expected.copy(expected.input.len());
        }
        assert_eq!(*received, expected.output);
        assert_eq!(held.len(), expected.input.len() - expected.at, "what is not sent on is held");
    }
}

/// Any bytes.
pub fn ftp(bytes: &[u8]) {
    messages("ftp", bytes);
}

/// Any bytes.
pub fn sip(bytes: &[u8]) {
    messages("sip", bytes);
}

/// Any bytes.
pub fn rtsp(bytes: &[u8]) {
    messages("rtsp", bytes);
}

/// Any bytes.
pub fn tftp(bytes: &[u8]) {
    messages("tftp", bytes);
}

/// Any bytes.
pub fn pptp(bytes: &[u8]) {
    messages("pptp", bytes);
}

/// A stream in any pieces becomes what it becomes in one piece, and asks for the same.
///
/// The first bytes: which gateway and which direction, then pairs of position and length of a
/// segment; 0xfe begins the input.
pub fn stream(bytes: &[u8]) {
    let Some((&options, rest)) = bytes.split_first() else { return };
    let Some(cut) = rest.iter().position(|byte| *byte == 0xfe) else { return };
    let (cuts, input) = (&rest[..cut], &rest[cut + 1..]);
    let name = match options >> 4 & 3 {
        0 => "sip",
        1 => "rtsp",
        2 => "pptp",
        _ => "ftp",
    };
    let whole = pass_all(name, options | 2, input, &[]);
    assert_eq!(pass_all(name, options | 2, input, cuts), whole);
}

/// What FTP is read after: the greeting before a command, and a command before its reply.
fn greet(session: &mut Session, from_client: bool, is_extended: bool) {
    session.read(false, b"220 ready\r\n");
    if !from_client {
        session.read(true, b"USER a\r\n");
        session.read(true, if is_extended { b"EPSV\r\n" } else { b"PASV\r\n" });
    }
}

fn pass_all(name: &str, options: u8, input: &[u8], cuts: &[u8]) -> Option<(Vec<u8>, Vec<Want>)> {
    let mut session = Session::new(name, options)?;
    let from_client = options & 8 == 0;
    if name == "ftp" {
        greet(&mut session, from_client, options & 4 == 0);
    }
    let mut stream = session.stream();
    let mut held = Held::default();
    let mut out = vec![0; 4 * MESSAGE_MAX + 2 * input.len()];
    let mut received: Vec<Option<u8>> = Vec::new();
    // Output that the receiver has, and input that the sender need not repeat.
    let (mut acked, mut quiet, mut forgotten) = (0, 0, 0);
    let chosen = cuts.chunks_exact(2).map(|pair| (usize::from(pair[0]) * 4, usize::from(pair[1]) + 1));
    for (at, length) in chosen.chain(std::iter::repeat((0, input.len()))) {
        let from = at.max(forgotten).min(input.len());
        let to = from.max(at + length).min(input.len());
        let segment = Segment { sequence: FIRST.wrapping_add(from as u32), payload: &input[from..to], fin: false };
        if stream.only_repeats(&held, &segment) {
            let is_sure = session.with_context(from_client, |alg, memory, context| {
                alg.is_surely_its_own(memory, context, held.message())
            });
            stream.take_over(&mut held, is_sure);
        }
        let passed = stream.pass(&mut held, &segment, &mut out, |bytes, seen| session.step(from_client, bytes, seen));
        if let Passed::On { sequence, length, .. } = passed {
            let start = sequence.wrapping_sub(FIRST) as i32;
            for (i, byte) in out[..length].iter().enumerate() {
                let Ok(at) = usize::try_from(start + i as i32) else { continue };
                if at < acked {
                    continue;
                }
                received.resize(received.len().max(at + 1), None);
                assert_eq!(*received[at].get_or_insert(*byte), *byte, "an output byte has one value");
            }
        }
        let contiguous = received.iter().take_while(|byte| byte.is_some()).count();
        quiet = if contiguous == acked && at == 0 && to == input.len() { quiet + 1 } else { 0 };
        acked = contiguous;
        let ack = stream.acknowledge(&mut held, FIRST.wrapping_add(acked as u32));
        assert!(ack.is_some(), "what was sent can be acknowledged");
        let known = ack.map_or(0, |ack| ack.wrapping_sub(FIRST) as usize);
        assert!((forgotten..=input.len()).contains(&known), "an acknowledgement of what came");
        forgotten = known;
        if quiet > 2 {
            break;
        }
    }
    Some((received.into_iter().map_while(|byte| byte).collect(), session.wants))
}
