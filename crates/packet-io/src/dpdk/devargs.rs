//! Completes the arguments of virtual devices whose drivers default to less than the workers and
//! the MTU need.
//!
//! What the configuration spells out is kept. Argument names are those of DPDK's guides, the same
//! from 22.11 to 25.11.

use std::fs;

/// Bytes in front of a frame in a ring of packet sockets, rounded up (`TPACKET2_HDRLEN`, addresses,
/// alignment).
const RING_OVERHEAD: u32 = 128;
/// Frames each ring of packet sockets holds.
const RING_FRAMES: u32 = 512;
/// Frame size that `net_af_packet` takes by default.
const RING_FRAME_BYTES: u32 = 2_048;
/// Page size of every machine this runs on, or a divisor of it; rings of packet sockets are made of
/// pages.
const PAGE_BYTES: u32 = 4_096;

/// Socket that `net_memif` takes if none is given.
const MEMIF_SOCKET: &str = "/run/memif.sock";

/// A device string: the driver with its number, then arguments.
pub(super) struct Device<'a> {
    text: &'a str,
}

impl<'a> Device<'a> {
    pub(super) fn new(text: &'a str) -> Device<'a> {
        Device { text }
    }

    fn is(&self, driver: &str) -> bool {
        let number = self.text.split(',').next().and_then(|name| name.strip_prefix(driver));
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    }

    /// Whether frames share their memory with the kernel, which wants them within one page.
    pub(super) fn is_xdp(&self) -> bool {
        self.is("net_af_xdp")
    }

    /// Whether rings and buffers lie in memory shared with another program, the peer.
    pub(super) fn is_memif(&self) -> bool {
        self.is("net_memif")
    }

    /// Whether another program reads and writes the packet buffers themselves: the server of a
    /// `net_memif` client, or the switch behind a vhost-user socket.
    pub(super) fn shares_buffers(&self) -> bool {
        self.is_memif() && self.argument("zero-copy") == Some("yes") || self.is("net_virtio_user")
    }

    /// The value of an argument.
    pub(super) fn argument(&self, key: &str) -> Option<&'a str> {
        let arguments = self.text.split(',').skip(1).filter_map(|argument| argument.split_once('='));
        arguments.filter(|(name, _)| *name == key).map(|(_, value)| value).next()
    }

    /// The socket of the server that a client of `net_memif` connects to: a path, or after `@` a
    /// name without a file.
    pub(super) fn memif_server(&self) -> Option<String> {
        if !self.is_memif() || matches!(self.argument("role"), Some("server" | "master")) {
            return None;
        }
        let socket = self.argument("socket").unwrap_or(MEMIF_SOCKET);
        let is_abstract = self.argument("socket-abstract") != Some("no");
        Some(if is_abstract { format!("@{socket}") } else { socket.to_owned() })
    }

    /// Receive queues of the kernel interface that AF_XDP sockets are bound to. What arrives on a
    /// queue without a socket goes to the kernel.
    pub(super) fn xdp_interface_queues(&self) -> usize {
        if self.is_xdp() { self.argument("iface").map_or(0, receive_queues) } else { 0 }
    }

    /// Bytes a buffer needs for what the driver copies into it.
    pub(super) fn room(&self) -> u32 {
        self.argument("framesz").and_then(|size| size.parse().ok()).unwrap_or(0)
    }

    /// The device string with what is missing for this many workers and frames of this length.
    pub(super) fn completed(&self, workers: usize, frame_bytes: u32) -> String {
        let mut text = self.text.to_owned();
        let mut add = |key: &str, value: u32| {
            if self.argument(key).is_none() {
                text.push_str(&format!(",{key}={value}"));
            }
        };
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        if self.is("net_af_packet") {
            add("qpairs", workers);
            let own_sizes = ["framesz", "blocksz", "framecnt"].iter().any(|key| self.argument(key).is_some());
            // Frames fill blocks of whole pages without a gap: the driver finds them by
            // multiplying.
            let frame = frame_bytes.saturating_add(RING_OVERHEAD);
            if !own_sizes && frame > RING_FRAME_BYTES {
                let frame = frame.next_multiple_of(PAGE_BYTES);
                add("framesz", frame);
                add("blocksz", frame);
                add("framecnt", RING_FRAMES);
            }
        }
        // Only a client can have the other side write into its buffers. The driver's default role
        // is client.
        if self.is_memif() && self.argument("role") != Some("server") && self.argument("zero-copy").is_none() {
            text.push_str(",zero-copy=yes");
        }
        text
    }
}

/// Receive queues of a kernel interface; 0 if the number is not known.
fn receive_queues(interface: &str) -> usize {
    let Ok(folder) = fs::read_dir(format!("/sys/class/net/{interface}/queues")) else { return 0 };
    let receives = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"rx-");
    folder.flatten().filter(receives).count()
}

#[cfg(test)]
mod tests {
    use super::Device;

    #[test]
    fn packet_sockets_get_a_queue_per_worker_and_room_for_the_mtu() {
        let completed = |text: &str, frame: u32| Device::new(text).completed(3, frame);
        assert_eq!(completed("net_af_packet0,iface=a", 1_526), "net_af_packet0,iface=a,qpairs=3");
        assert_eq!(
            completed("net_af_packet0,iface=a", 9_026),
            "net_af_packet0,iface=a,qpairs=3,framesz=12288,blocksz=12288,framecnt=512"
        );
        let spelled_out = "net_af_packet0,iface=a,qpairs=1,framesz=4096,blocksz=4096,framecnt=64";
        assert_eq!(completed(spelled_out, 9_026), spelled_out);
        assert_eq!(Device::new(spelled_out).room(), 4_096);
    }

    #[test]
    fn a_memif_client_shares_its_buffers_by_default() {
        let completed = |text: &str| Device::new(text).completed(1, 1_526);
        for client in ["net_memif0", "net_memif0,id=1,role=client"] {
            assert_eq!(completed(client), format!("{client},zero-copy=yes"));
            assert!(Device::new(&completed(client)).shares_buffers());
        }
        for kept in ["net_memif0,zero-copy=no", "net_memif0,role=server"] {
            assert_eq!(completed(kept), kept);
            assert!(!Device::new(kept).shares_buffers());
        }
    }

    #[test]
    fn a_vhost_user_link_shares_its_buffers_a_kernel_port_does_not() {
        assert!(Device::new("net_virtio_user0,path=/run/vswitch.sock,queues=2").shares_buffers());
        assert!(!Device::new("net_af_packet0,iface=a").shares_buffers());
    }

    #[test]
    fn a_memif_client_names_the_socket_of_its_server() {
        let server = |text: &str| Device::new(text).memif_server();
        assert_eq!(server("net_memif0,role=client,socket=/a,socket-abstract=no").as_deref(), Some("/a"));
        assert_eq!(server("net_memif0,id=3").as_deref(), Some("@/run/memif.sock"));
        assert_eq!(server("net_memif0,role=server,socket=/a"), None);
        assert_eq!(server("net_ring0,role=client"), None);
    }

    #[test]
    fn other_devices_are_left_alone() {
        for text in [
            "net_tap0,iface=x",
            "net_af_xdp0,iface=x",
            "net_ring0",
            "0000:3b:00.0",
            "net_af_packets0",
            "net_memif0,role=server",
        ] {
            assert_eq!(Device::new(text).completed(2, 9_026), text);
        }
    }
}
