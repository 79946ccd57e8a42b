//! The thread between the workers' rings and the kernel: frames of the TAPs, and neighbours.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::HashMap;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Settings;
use nat::types::InterfaceId;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_core::NLM_F_EXCL;
use packet_io::Buffer;
use packet_io::PortIndex;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use wire::ethernet::MacAddress;

use crate::kernel::end::Ask;
use crate::kernel::end::DOWN_FRAMES;
use crate::kernel::end::Down;
use crate::kernel::end::KernelEnd;
use crate::kernel::end::KernelNeighbour;
use crate::kernel::end::NEWS;
use crate::kernel::end::UP_FRAMES;
use crate::kernel::end::Up;
use crate::kernel::netlink;
use crate::kernel::netlink::NeighbourNews;
use crate::kernel::netlink::Netlink;
use crate::kernel::probes::Probes;
use crate::kernel::sent::Sent;
use crate::kernel::setup::Devices;
use crate::kernel::setup::PortDevice;
use crate::log::Log;

/// Longest wait: a worker has no way to wake the thread, because that would be a system call.
const PAUSE: Duration = Duration::from_millis(1);
/// Frames of one TAP, or of one ring, in one round.
const ROUND: usize = 64;
/// Longest frame: MTU, Ethernet header and two tags.
const FRAME_MAX: usize = 9_216 + 22;
/// Neighbours that are remembered. The kernel itself keeps 1024 by default (`gc_thresh3`).
const NEIGHBOURS_MAX: usize = 65_536;

/// The thread's ends of the rings of one worker.
struct WorkerEnds<B> {
    up: Consumer<Up<B>>,
    down: Producer<Down>,
    back: Consumer<Down>,
    asks: Consumer<Ask>,
    neighbours: Producer<KernelNeighbour>,
}

/// The thread. Dropping it ends it.
pub struct KernelThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The rings between workers and the thread.
pub struct Rings<B> {
    ends: Vec<WorkerEnds<B>>,
    sent: Arc<Sent>,
    probes: Probes,
}

/// The rings, and the end of each worker.
pub fn rings<B: Send>(workers: usize, settings: &Settings, secret: u64) -> (Rings<B>, Vec<KernelEnd<B>>) {
    let mut ends = Vec::new();
    let mut of_workers = Vec::new();
    let sent = Arc::new(Sent::new(secret));
    for worker in 0..workers {
        let (up, up_consumer) = ring::channel(UP_FRAMES);
        let (down, down_consumer) = ring::channel(DOWN_FRAMES);
        // Everything that is on its way fits, so a worker never has to free memory.
        let (back, back_consumer) = ring::channel(DOWN_FRAMES * 2);
        let (asks, asks_consumer) = ring::channel(NEWS);
        let (neighbours, neighbours_consumer) = ring::channel(NEWS);
        ends.push(WorkerEnds { up: up_consumer, down, back: back_consumer, asks: asks_consumer, neighbours });
        let secret = secret.rotate_left(worker as u32 + 1);
        let sent = Arc::clone(&sent);
        of_workers.push(KernelEnd::new(up, down_consumer, back, asks, neighbours_consumer, settings, sent, secret));
    }
    (Rings { ends, sent, probes: Probes::new(secret) }, of_workers)
}

impl KernelThread {
    /// Starts the thread. `sender_of` is the worker that sends on a port; `prepare` runs first.
    ///
    /// # Errors
    /// The system refuses a socket or the thread.
    pub fn start<B: Buffer + 'static>(
        devices: &Devices,
        rings: Rings<B>,
        sender_of: impl Fn(PortIndex) -> usize + Send + 'static,
        prepare: impl FnOnce() + Send + 'static,
        log: Log,
    ) -> io::Result<KernelThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let monitor = Netlink::open(&[netlink::NEIGHBOURS])?;
        let mut relay = Relay {
            asker: Netlink::open(&[])?,
            monitor,
            device_of: devices.interfaces.iter().copied().collect(),
            interface_of: devices.interfaces.iter().map(|(interface, device)| (*device, *interface)).collect(),
            devices: devices.clone(),
            known: Known::default(),
            ends: rings.ends,
            sent: rings.sent,
            probes: rings.probes,
            spare: Vec::new(),
            has_lost: false,
            broken: HashSet::new(),
            log,
        };
        relay.dump();
        let until = Arc::clone(&stop);
        let run = move || {
            prepare();
            while !until.load(Ordering::Relaxed) {
                relay.round(&sender_of);
            }
        };
        let thread = thread::Builder::new().name("kernel".to_owned()).spawn(run)?;
        Ok(KernelThread { stop, thread: Some(thread) })
    }
}

impl Drop for KernelThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

struct Relay<B> {
    devices: Devices,
    ends: Vec<WorkerEnds<B>>,
    sent: Arc<Sent>,
    monitor: Netlink,
    asker: Netlink,
    device_of: HashMap<InterfaceId, u32>,
    interface_of: HashMap<u32, InterfaceId>,
    known: Known,
    probes: Probes,
    spare: Vec<Box<[u8]>>,
    /// Messages about neighbours were lost.
    has_lost: bool,
    /// Ports whose TAP failed since it last gave a frame; said once for each.
    broken: HashSet<PortIndex>,
    log: Log,
}

impl<B: Buffer> Relay<B> {
    fn round(&mut self, sender_of: &impl Fn(PortIndex) -> usize) {
        let mut is_busy = self.give_frames();
        is_busy |= self.take_frames(sender_of);
        is_busy |= self.ask();
        self.hear();
        if is_busy {
            return;
        }
        let mut waited: Vec<PollFd<'_>> =
            self.devices.ports.iter().map(|port| PollFd::from_borrowed_fd(port.tap.as_fd(), PollFlags::IN)).collect();
        waited.push(PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN));
        let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as _ };
        // After an error, and from a device that is down, it only waits.
        if !matches!(poll(&mut waited, Some(&pause)), Ok(ready) if ready == 0 || self.broken.is_empty()) {
            thread::sleep(PAUSE);
        }
    }

    /// Frames of the workers to the kernel.
    fn give_frames(&mut self) -> bool {
        let mut count = 0;
        for ends in &mut self.ends {
            for _ in 0..ROUND {
                let Some(Up { port, buffer }) = ends.up.try_pop() else { break };
                count += 1;
                let Some(device) = self.devices.ports.iter().find(|device| device.port == port) else { continue };
                // A device that is down, or whose queue is full, loses frames as a port does.
                let _ = device.tap.write(buffer.bytes());
            }
        }
        count > 0
    }

    /// Frames of the kernel to the worker that sends on their port.
    fn take_frames(&mut self, sender_of: &impl Fn(PortIndex) -> usize) -> bool {
        let mut count = 0;
        for ends in &mut self.ends {
            while let Some(Down { bytes, .. }) = ends.back.try_pop() {
                self.spare.push(bytes);
            }
        }
        self.spare.truncate(DOWN_FRAMES * 2);
        for device in &self.devices.ports {
            let Some(ends) = self.ends.get_mut(sender_of(device.port)) else { continue };
            for _ in 0..ROUND {
                if ends.down.room(1) == 0 {
                    break;
                }
                let mut bytes = self.spare.pop().unwrap_or_else(|| vec![0; FRAME_MAX].into_boxed_slice());
                let length = match device.tap.read(&mut bytes) {
                    Ok(Some(length)) => length,
                    other => {
                        self.spare.push(bytes);
                        if let Err(error) = other
                            && self.broken.insert(device.port)
                            && !is_deleted(&error)
                        {
                            let name = &device.name;
                            self.log.warn(&format_args!("kernel device {name}: {error}; was it set down?"));
                        }
                        break;
                    }
                };
                self.broken.remove(&device.port);
                count += 1;
                let frame = bytes.get(..length).unwrap_or_default();
                if self.probes.is_own(frame) {
                    self.spare.push(bytes);
                    continue;
                }
                self.sent.note(device.port, frame);
                // There is room.
                let _ = ends.down.try_push(Down { port: device.port, bytes, length });
            }
        }
        count > 0
    }

    /// Neighbours that workers ask for. What is known is answered at once; the kernel checks it.
    fn ask(&mut self) -> bool {
        let mut count = 0;
        for ends in &mut self.ends {
            for _ in 0..ROUND {
                let Some(Ask { interface, address }) = ends.asks.try_pop() else { break };
                count += 1;
                let known = self.known.stations.get(&(interface, address)).copied();
                if let Some(Station { mac, .. }) = known {
                    // If it is lost, the worker asks again.
                    let _ = ends.neighbours.try_push(KernelNeighbour { interface, address, station: Some(mac) });
                }
                let Some(&device) = self.device_of.get(&interface) else { continue };
                if !known.is_some_and(|station| station.is_fixed) {
                    ask_kernel(&mut self.asker, &self.probes, device, address);
                }
            }
        }
        count > 0
    }

    /// What the kernel learned.
    fn hear(&mut self) {
        let mut heard = Vec::new();
        let more = self.monitor.receive(|message| heard.extend(netlink::neighbour_news(&message)));
        for news in heard {
            self.pass_on(news);
        }
        self.has_lost |= more.is_err();
        if self.has_lost && matches!(more, Ok(false)) {
            // Messages were lost: all neighbours once more, after those that came before.
            self.has_lost = false;
            self.dump();
        }
    }

    fn dump(&mut self) {
        let mut found = Vec::new();
        let Ok(mut socket) = Netlink::open(&[]) else { return };
        // The monitor reports what is missing after an interruption.
        let _ = socket.dump(netlink::all_neighbours(), |message| found.extend(netlink::neighbour_news(&message)));
        for news in found {
            self.pass_on(news);
        }
    }

    fn pass_on(&mut self, news: NeighbourNews) {
        let Some(&interface) = self.interface_of.get(&news.device) else { return };
        if !self.known.learn(interface, &news, self.devices.ports.iter().all(PortDevice::has_link)) {
            return;
        }
        let NeighbourNews { address, station, .. } = news;
        for ends in &mut self.ends {
            // If it is lost, the worker asks again, or finds out when it checks the neighbour.
            let _ = ends.neighbours.try_push(KernelNeighbour { interface, address, station });
        }
    }
}

/// Has the kernel resolve a neighbour, or check that it is still there, whatever an operator does
/// with its entry at the same time.
fn ask_kernel(asker: &mut Netlink, probes: &Probes, device: u32, address: IpAddr) {
    let asked = asker.request(netlink::resolve(device, address), NLM_F_CREATE | NLM_F_EXCL);
    let is_there = asked.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
    if !is_there {
        // If it failed, the worker asks again.
        return;
    }
    match probes.send(device, address) {
        // Too many wait. The worker asks again.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        // A firewall refuses what the machine sends, or there is no route for IPv6. An entry that
        // an operator has set just now would become an ordinary one.
        Err(_) => drop(asker.request(netlink::resolve(device, address), NLM_F_CREATE)),
        Ok(()) => {}
    }
}

/// A neighbour that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Station {
    mac: MacAddress,
    /// An operator has set it; it needs no check.
    is_fixed: bool,
}

/// All that are known.
#[derive(Default)]
struct Known {
    stations: HashMap<(InterfaceId, IpAddr), Station>,
}

impl Known {
    /// Takes over what the kernel reports. Returns whether workers need to know.
    fn learn(&mut self, interface: InterfaceId, news: &NeighbourNews, has_link: bool) -> bool {
        let key = (interface, news.address);
        let has_room = self.stations.len() < NEIGHBOURS_MAX;
        let known = self.stations.get_mut(&key);
        if news.is_asked {
            return false;
        }
        let was = known.as_ref().map(|known| known.mac);
        match (news.station, known) {
            (Some(mac), Some(known)) => *known = Station { mac, is_fixed: news.is_fixed },
            (Some(mac), None) if has_room => {
                self.stations.insert(key, Station { mac, is_fixed: news.is_fixed });
            }
            (Some(_), None) => {}
            // Active subscribers are more than the kernel keeps, and it does not see their packets.
            // Workers ask again within a minute. Without link, another station may come back.
            (None, known) if news.is_collected && has_link => {
                if let Some(known) = known {
                    known.is_fixed = false;
                }
                return false;
            }
            (None, _) => {
                self.stations.remove(&key);
            }
        }
        !repeats(was.as_ref(), news)
    }
}

/// The device of a TAP is gone permanently. The thread that follows devices says so.
fn is_deleted(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BADFD)
}

/// Nothing new: the kernel has not heard from the neighbour for a while, or asks it again. Workers
/// would trust the entry for another minute.
fn repeats(known: Option<&MacAddress>, news: &NeighbourNews) -> bool {
    !news.is_confirmed && news.station.is_some() && known == news.station.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_renews_the_trust_in_a_neighbour() {
        let (one, other) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
        let news = |station, is_confirmed| NeighbourNews {
            device: 7,
            address: IpAddr::from([192, 0, 2, 9]),
            station,
            is_confirmed,
            is_asked: false,
            is_fixed: false,
            is_collected: false,
        };
        assert!(repeats(Some(&one), &news(Some(one), false)), "stale");
        assert!(!repeats(Some(&one), &news(Some(one), true)), "it has answered");
        assert!(!repeats(Some(&one), &news(Some(other), false)), "stale at once, as it announced another address");
        assert!(!repeats(None, &news(Some(one), false)), "known before the start");
        assert!(!repeats(Some(&one), &news(None, false)), "it failed");
    }

    #[test]
    fn only_what_an_operator_has_set_needs_no_check() {
        let (lan, address) = (InterfaceId(0), IpAddr::from([192, 0, 2, 9]));
        let mut known = Known::default();
        let mut hear = |last, is_confirmed, is_fixed, is_collected| {
            let station = (last > 0).then_some(MacAddress([2, 0, 0, 0, 0, last]));
            let news =
                NeighbourNews { device: 7, address, station, is_confirmed, is_asked: false, is_fixed, is_collected };
            let is_passed_on = known.learn(lan, &news, true);
            (is_passed_on, known.stations.get(&(lan, address)).map(|station| (station.mac.0[5], station.is_fixed)))
        };
        assert_eq!(hear(1, true, true, false), (true, Some((1, true))), "permanent");
        assert_eq!(hear(1, false, false, false), (false, Some((1, false))), "an ordinary one again");
        assert_eq!(hear(2, true, true, false), (true, Some((2, true))), "another station");
        assert_eq!(hear(0, false, false, true), (false, Some((2, false))), "it went with its device: it is asked for");
        assert_eq!(hear(2, true, true, false), (true, Some((2, true))), "it is back");
        assert_eq!(hear(0, false, false, false), (true, None), "an operator has removed it");
    }
}
