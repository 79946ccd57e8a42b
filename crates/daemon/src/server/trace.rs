//! `trace`: packets as they pass, from all workers, until the client stops.

use core::fmt::Write as _;
use core::net::SocketAddr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;

use control::End;
use control::Fault;
use control::HexBytes;
use control::Reply;
use control::Request;
use control::Trace;
use control::TraceRecord;
use control::line::LineError;
use lookup::convert::engine_protocol;
use nat::Verdict;
use nat::grant::Origin;
use nat::types::InterfaceId;
use nat::view;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ipv6;

use super::Client;
use super::convert;
use super::is_timeout;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;
use crate::server::unanswered;
use crate::server::why;
use crate::trace;
use crate::trace::Flow;
use crate::trace::TraceFilter;
use crate::trace::TraceReader;

/// Maximum records that a worker is ahead of the client.
const RECORDS: usize = 512;
/// Records to send before the next read from the client.
const BATCH: usize = 256;
/// How long to wait for the client when there is no packet.
const LISTEN: Duration = Duration::from_millis(10);
/// The same among many packets: only to see whether the client has sent a request.
const GLANCE: Duration = Duration::from_millis(1);

/// Ends the traces of the workers, however this one ends.
struct Running<'a> {
    instance: &'a Instance,
    id: u64,
    readers: Vec<TraceReader>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        for worker in 0..self.instance.worker_count() {
            // A worker that does not answer notices at its next trace that this one has no reader.
            let _ = self.instance.ask(worker, Question::TraceStop(self.id));
        }
    }
}

pub(crate) fn trace(
    client: &mut Client,
    instance: &Instance,
    stop: &AtomicBool,
    wanted: &Trace,
    mut record: impl FnMut(&str) -> Result<(), Fault>,
) -> Result<(), LineError> {
    let started = start(instance, wanted);
    let result = started.as_ref().map_or_else(unanswered, |_| control::STARTED.to_owned());
    let mut running = match (record(&result), started) {
        (Ok(()), Ok(running)) => running,
        (Err(fault), _) | (Ok(()), Err(fault)) => return Ok(client.send(&Reply::Error(fault))?),
    };
    let idle_timeout = client.stream().read_timeout()?;
    let mut shown = 0;
    let outcome = stream(client, instance, stop, wanted, (&mut running, &mut shown));
    let recorded = record(&format!("ended: {shown} packets"));
    client.stream().set_read_timeout(idle_timeout)?;
    match (outcome?, recorded) {
        (Some(last), Ok(())) => Ok(client.send(&last)?),
        (Some(_), Err(fault)) => Ok(client.send(&Reply::Error(fault))?),
        (None, _) => Ok(()),
    }
}

/// Sends packets, and counts them in `shown`. Returns what the client gets at the end; None if it
/// is gone.
fn stream(
    client: &mut Client,
    instance: &Instance,
    stop: &AtomicBool,
    wanted: &Trace,
    (running, shown): (&mut Running<'_>, &mut u64),
) -> Result<Option<Reply>, LineError> {
    let mut left = wanted.count.unwrap_or(u64::MAX);
    while !stop.load(Ordering::Relaxed) && left > 0 {
        let mut sent = 0;
        for (worker, reader) in running.readers.iter_mut().enumerate() {
            while left > 0 && sent < BATCH {
                let mut object = None;
                if !reader.read(|record| object = Some(object_of(instance, worker, record, wanted))) {
                    break;
                }
                let Some(object) = object else { break };
                client.send(&object.into())?;
                sent += 1;
                left -= 1;
                *shown += 1;
            }
        }
        if left == 0 {
            break;
        }
        client.stream().set_read_timeout(Some(if sent > 0 { GLANCE } else { LISTEN }))?;
        match client.next_request() {
            Ok(Some(Request::TraceStop)) => break,
            Ok(Some(_)) => {
                let fault = Fault::new("request", "sent while a trace runs", "send trace_stop first");
                return Ok(Some(Reply::Error(fault)));
            }
            Ok(None) => return Ok(None),
            Err(LineError::Io(error)) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(Reply::End(End { cursor: None })))
}

fn start<'a>(instance: &'a Instance, wanted: &Trace) -> Result<Running<'a>, Fault> {
    let filter = filter_of(instance, wanted)?;
    let mut running = Running { instance, id: instance.next_trace(), readers: Vec::new() };
    for worker in 0..instance.worker_count() {
        let (tap, reader) = trace::tap(running.id, filter, wanted.snap_bytes as usize, RECORDS);
        match instance.ask(worker, Question::TraceStart(Some(tap)))? {
            Question::TraceStart(None) => running.readers.push(reader),
            Question::TraceStart(Some(_)) => {
                let fault = Fault::new("trace", control::TOO_MANY_TRACES, "end another one first");
                return Err(fault.seen(format!("{} per worker", trace::TAPS_MAX)));
            }
            _ => return Err(mismatch(worker)),
        }
    }
    Ok(running)
}

fn filter_of(instance: &Instance, wanted: &Trace) -> Result<TraceFilter, Fault> {
    let interface = match &wanted.interface {
        None => None,
        Some(name) => {
            let position = instance.shared().settings().interfaces.iter().position(|interface| interface.name == *name);
            let missing =
                || Fault::new(format!("interface \"{name}\""), "does not exist", "see natrix show interfaces");
            Some(InterfaceId(position.ok_or_else(missing)? as u16))
        }
    };
    let verdict = match &wanted.verdict {
        None => None,
        Some(name) => {
            let missing =
                || Fault::new(format!("verdict \"{name}\""), "does not exist", "see natrix show counters --all");
            Some(*Verdict::ALL.iter().find(|verdict| verdict.name() == name).ok_or_else(missing)?)
        }
    };
    Ok(TraceFilter {
        protocol: wanted.protocol.map(engine_protocol),
        address: wanted.address,
        port: wanted.port,
        interface,
        verdict,
        dropped_only: wanted.dropped_only,
    })
}

fn object_of(instance: &Instance, worker: usize, record: &trace::TraceRecord, wanted: &Trace) -> TraceRecord {
    let name = |interface: InterfaceId| {
        let shared = instance.shared();
        let interface = shared.settings().interfaces.get(interface.index());
        interface.map(|interface| interface.name.clone()).unwrap_or_default()
    };
    let snap = |frame: &[u8]| {
        let length = frame.len().min(wanted.snap_bytes as usize);
        HexBytes(frame.get(..length).unwrap_or(frame).to_vec())
    };
    let left = !record.after.is_empty();
    TraceRecord {
        time_us: instance.clock.unix_us(record.time),
        worker: worker as u8,
        interface: record.interface.map(name).unwrap_or_default(),
        interface_out: record.interface_out.map(name),
        verdict: record.verdict.name().to_owned(),
        kind: convert::verdict_kind(record.verdict.kind()),
        before: in_words(&record.before),
        after: left.then(|| in_words(&record.after)),
        origin: record.steps.iter().find_map(origin_in).map(|origin| origin.name().to_owned()),
        steps: why::steps_of(&instance.shared(), &record.steps),
        length_bytes: record.length,
        frame: (wanted.snap_bytes > 0).then(|| snap(&record.before)),
        frame_out: (wanted.snap_bytes > 0 && left).then(|| snap(&record.after)),
        lost_before: record.lost_before,
    }
}

/// What asked for the mapping, if the step says so.
fn origin_in(step: &view::Step) -> Option<Origin> {
    match step {
        view::Step::MappingFound { origin, .. } => *origin,
        view::Step::Granted { origin, .. } => Some(*origin),
        _ => None,
    }
}

/// A frame in one line.
fn in_words(frame: &[u8]) -> String {
    let Ok(header) = wire::ethernet::LinkHeader::parse(frame) else {
        return format!("truncated frame len {}", frame.len());
    };
    let payload = frame.get(header.payload_offset()..).unwrap_or_default();
    let packet = match header.ether_type {
        ETHER_TYPE_IPV4 | ETHER_TYPE_IPV6 => Flow::of(payload),
        wire::ethernet::ETHER_TYPE_ARP => return arp_in_words(payload),
        _ => None,
    };
    let Some(flow) = packet else {
        return format!("ethertype 0x{:04x} {} > {}", header.ether_type, header.source, header.destination);
    };
    match (flow.softwire, header.ether_type) {
        (None, ETHER_TYPE_IPV4) => ipv4_in_words(payload, &flow),
        (None, _) => ipv6_in_words(payload, &flow),
        (Some((from, to)), _) => {
            let chain = ipv6::chain(payload);
            let offset = chain.map_or(payload.len(), |chain| chain.offset);
            let inner = payload.get(offset..).unwrap_or_default();
            // Only the first fragment shows what is inside, with the length of the whole packet.
            let fragment = chain.ok().and_then(|chain| chain.fragment).filter(|fragment| !fragment.is_atomic());
            let fragment = fragment.map_or_else(String::new, |fragment| fragment_in_words(&fragment));
            format!("softwire {from} > {to}{fragment} {}", ipv4_in_words(inner, &flow))
        }
    }
}

fn fragment_in_words(fragment: &ipv6::Fragment) -> String {
    let more = if fragment.more { "+" } else { "" };
    format!(" fragment {}{more}", fragment.offset)
}

/// Protocol and endpoints.
fn endpoints_in_words(flow: &Flow) -> String {
    let protocol = match flow.protocol {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        ipv6::PROTOCOL_ICMP6 => "icmp6".to_owned(),
        ipv6::PROTOCOL_IPV4 if flow.source.is_ipv6() => "softwire".to_owned(),
        number => format!("protocol {number}"),
    };
    match flow.ports {
        Some((source, destination)) => {
            let (source, destination) =
                (SocketAddr::new(flow.source, source), SocketAddr::new(flow.destination, destination));
            format!("{protocol} {source} > {destination}")
        }
        None => format!("{protocol} {} > {}", flow.source, flow.destination),
    }
}

/// What the first transport bytes say, besides ports.
fn transport_in_words(text: &mut String, flow: &Flow, transport: &[u8]) {
    let field = |offset: usize| transport.get(offset).copied().unwrap_or(0);
    // Writing to a String does not fail.
    let _ = match flow.protocol {
        6 if flow.ports.is_some() => {
            let flags = field(13);
            let names = [(0x02, "syn"), (0x10, "ack"), (0x01, "fin"), (0x04, "rst"), (0x08, "psh")];
            let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
            write!(text, " {}", set.join(","))
        }
        1 | ipv6::PROTOCOL_ICMP6 => write!(text, " type {} code {}", field(0), field(1)),
        _ => Ok(()),
    };
}

fn ipv4_in_words(packet: &[u8], flow: &Flow) -> String {
    let field = |offset: usize| packet.get(offset).copied().unwrap_or(0);
    let mut text = endpoints_in_words(flow);
    let transport = usize::from(field(0) & 0x0f) * 4;
    let fragment = u16::from_be_bytes([field(6), field(7)]);
    if fragment & 0x1fff == 0 {
        transport_in_words(&mut text, flow, packet.get(transport..).unwrap_or_default());
    }
    if fragment & 0x3fff != 0 {
        let more = if fragment & 0x2000 == 0 { "" } else { "+" };
        let _ = write!(text, " fragment {}{more}", u32::from(fragment & 0x1fff) * 8);
    }
    let _ = write!(text, " len {} ttl {}", u16::from_be_bytes([field(2), field(3)]), field(8));
    text
}

fn ipv6_in_words(packet: &[u8], flow: &Flow) -> String {
    let field = |offset: usize| packet.get(offset).copied().unwrap_or(0);
    let mut text = endpoints_in_words(flow);
    if let Ok(chain) = ipv6::chain(packet) {
        if chain.fragment.is_none_or(|fragment| fragment.offset == 0) {
            transport_in_words(&mut text, flow, packet.get(chain.offset..).unwrap_or_default());
        }
        if let Some(fragment) = chain.fragment {
            text += &fragment_in_words(&fragment);
        }
    }
    let length = ipv6::HEADER_LENGTH + usize::from(u16::from_be_bytes([field(4), field(5)]));
    let _ = write!(text, " len {length} hop limit {}", field(7));
    text
}

fn arp_in_words(payload: &[u8]) -> String {
    use wire::arp::Message;
    use wire::arp::Operation;
    let Ok(message) = Message::parse(payload) else { return "arp, unreadable".to_owned() };
    let address = core::net::Ipv4Addr::from_bits;
    let (sender, target) = (address(message.sender_address), address(message.target_address));
    match message.operation {
        Operation::Request => format!("arp request {target} from {sender}"),
        Operation::Reply => format!("arp reply {sender} is at {}", message.sender_mac),
    }
}

#[cfg(test)]
mod tests {
    use wire::build;
    use wire::build6;
    use wire::ethernet::MacAddress;

    use super::*;

    #[test]
    fn a_softwire_fragment_differs_from_a_whole_packet() {
        let inner = build::udp(build::endpoint([192, 168, 1, 2], 5_000), build::endpoint([192, 0, 2, 7], 53));
        let inner = inner.payload_length(900).build();
        let [b4, aftr] = ["2001:db8:c::6", "2001:db8:1::aaaa"].map(|one| one.parse().expect("an address"));
        let whole = build6::raw(b4, aftr, ipv6::PROTOCOL_IPV4, &inner);
        let words = |packet: &[u8]| {
            let station = MacAddress([2, 0, 0, 0, 0, 1]);
            in_words(&build::frame(station, station, ETHER_TYPE_IPV6, packet))
        };
        let inside = "udp 192.168.1.2:5000 > 192.0.2.7:53 len 928 ttl 64";
        assert_eq!(words(&whole), format!("softwire {b4} > {aftr} {inside}"));
        let fragments: Vec<String> = build6::fragment(&whole, 560, 9).iter().map(|packet| words(packet)).collect();
        assert_eq!(
            fragments,
            [
                format!("softwire {b4} > {aftr} fragment 0+ {inside}"),
                format!("softwire {b4} > {aftr} fragment 512 len 464 hop limit 64"),
            ]
        );
    }
}
