//! The network: namespaces, cables, NATs and routing daemons. It goes when it is dropped.

use core::net::Ipv4Addr;
use core::sync::atomic::AtomicBool;
use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use super::SharingError;
use super::SharingOptions;
use super::programs::Program;
use super::wait_for;
use crate::topology::check_privileges;
use crate::topology::remove_namespaces;
use crate::topology::run;

/// The server, and where it listens for datagrams and for connections.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(super) const ECHO_PORT: u16 = 7_000;
pub(super) const SINK_PORT: u16 = 7_001;

const ACCESS: &str = "10.255.0.1";
const BORDER: &str = "198.51.100.1";
/// Where Debian's packages have the daemons of FRR.
pub(super) const FRR: &str = "/usr/lib/frr";
/// Starts a daemon of FRR as root, which has to be of a group there. As its own user it would
/// outlive the lab that is killed: the kernel then forgets who its parent was. `ip netns exec` has
/// its own mounts, so nobody else sees this file of groups.
const AS_ROOT: &str = "mount --bind \"$1\" /etc/group && shift && exec \"$@\"";
/// Several for each subscriber, so that few share one.
const BUCKETS: u32 = 8_192;
/// What keeps the access router's next hops in line with its routes.
const STICKY: &str = include_str!("../../../../examples/sticky-next-hops.py");

/// Where a moment is on the clock of this process, and on that of the machine.
pub(super) type Moment = (Instant, SystemTime);

/// Which NAT, from 0, has this address in its pool.
pub(super) fn nat_of(external: Ipv4Addr) -> Option<usize> {
    (usize::from(external.octets()[3]) / 16).checked_sub(1)
}

/// One of the NATs.
#[derive(Debug)]
struct Nat {
    /// Counted from 1.
    number: u8,
    namespace: String,
    socket: PathBuf,
    natrix: Option<Program>,
}

impl Nat {
    fn inside(&self) -> String {
        format!("10.255.0.{}", 10 + self.number)
    }

    fn outside(&self) -> String {
        format!("198.51.100.{}", 10 + self.number)
    }

    fn loopback(&self) -> String {
        format!("10.255.1.{}/32", 10 + self.number)
    }

    fn pool(&self) -> String {
        format!("203.0.113.{}/29", 16 * self.number + 8)
    }

    /// What stays announced while it is drained, so that packets of its flows come back.
    fn aggregate(&self) -> String {
        format!("203.0.113.{}/28", 16 * self.number)
    }

    fn configuration(&self, drivers: &[String; 2], subscribers: u32) -> String {
        let [inside_driver, outside_driver] = drivers;
        let subscribers_max = 2 * subscribers + 1_000;
        format!(
            r#"[[interface]]
name = "inside"
realm = "inside"
driver = "{inside_driver}"
addresses = ["{}/24"]
kernel = "nx-inside"

[[interface]]
name = "outside"
realm = "outside"
driver = "{outside_driver}"
addresses = ["{}/24"]
kernel = "nx-outside"

[[route]]
prefix = "100.64.0.0/16"
via = "{ACCESS}"

[[pool]]
name = "public"
addresses = ["{}"]
subscribers = ["100.64.0.0/10"]

[routing]
kernel = true

[tables]
mappings = {}
subscribers = {subscribers_max}

[control]
socket = "{}"
"#,
            self.inside(),
            self.outside(),
            self.pool(),
            10 * subscribers_max,
            self.socket.display(),
        )
    }

    /// The recipe of docs/routing.md for it: the daemon and its configuration.
    fn recipe(&self) -> Vec<(&'static str, String)> {
        let interface = |number, device| format!("interface {device}\n ip ospf {number} area 0\n{}", hellos(0));
        let ospf = |number, interfaces: String, router_id, first, more| {
            format!(
                "{POOLS}{interfaces}router ospf {number}\n ospf router-id {router_id}\n{first} \
                 redistribute kernel route-map pools\n{more}{TIMERS}"
            )
        };
        let inside = format!("{}interface lo\n ip ospf 1 area 0\n", interface(1, "nx-inside"));
        let outside = interface(2, "nx-outside");
        vec![
            ("bfdd", BFD.to_owned()),
            ("staticd", format!("ip route {} blackhole\n", self.aggregate())),
            ("ospfd-1", ospf(1, inside, self.inside(), " distance 120\n", "")),
            ("ospfd-2", ospf(2, outside, self.outside(), "", " redistribute static route-map pools\n")),
        ]
    }
}

/// A dead neighbour is noticed within 0.6 s.
const BFD: &str =
    "bfd\n profile fast\n  detect-multiplier 3\n  receive-interval 200\n  transmit-interval 200\n exit\nexit\n";
/// A second change follows the first at once.
const TIMERS: &str = " timers throttle spf 10 50 100\n timers throttle lsa all 0\n timers lsa min-arrival 0\n";

/// Of what the kernel has, only pools are announced.
const POOLS: &str = "ip prefix-list pools permit 203.0.113.0/24 le 32\nroute-map pools permit 10\n \
                     match ip address prefix-list pools\n";

fn hellos(priority: u8) -> String {
    format!(
        " ip ospf hello-interval 1\n ip ospf dead-interval 4\n ip ospf priority {priority}\n ip ospf bfd\n \
         ip ospf bfd profile fast\n"
    )
}

/// OSPF of the routers on both sides: they are the designated ones of their link.
fn router(device: &str, prefix: &str, router_id: &str, more: &str) -> Vec<(&'static str, String)> {
    let ospf = format!(
        "interface {device}\n{}router ospf\n ospf router-id {router_id}\n network {prefix} area 0\n{more}{TIMERS}",
        hellos(200)
    );
    vec![("bfdd", BFD.to_owned()), ("ospfd", ospf)]
}

/// The whole network.
#[derive(Debug)]
pub(super) struct Network {
    binary: PathBuf,
    prefix: String,
    folder: PathBuf,
    namespaces: Vec<String>,
    nats: Vec<Nat>,
    /// Daemons of FRR. They end before the namespaces go.
    daemons: Vec<Program>,
    sticky: Option<Program>,
}

impl Network {
    /// Builds and starts all of it. The routing still has to find its way.
    pub(super) fn build(
        options: &SharingOptions,
        prefix: &str,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<Network, SharingError> {
        check_privileges()?;
        let mut network = Network {
            binary: options.binary.clone(),
            prefix: prefix.to_owned(),
            folder: folder.to_owned(),
            namespaces: Vec::new(),
            nats: Vec::new(),
            daemons: Vec::new(),
            sticky: None,
        };
        network.lay_cables(options.nats)?;
        for number in 1..=options.nats {
            network.start_nat(number, options, stop)?;
        }
        let [access, border] = [network.name("access"), network.name("border")];
        network.start_frr(&access, &router("inside", "10.255.0.0/24", ACCESS, ""), stop)?;
        // A default route, and a route of its own that it shall not spread inside.
        let more = " network 192.0.2.0/24 area 0\n default-information originate always\n";
        network.start_frr(&border, &router("outside", "198.51.100.0/24", BORDER, more), stop)?;
        for place in 0..network.nats.len() {
            let (namespace, recipe) = (network.nats[place].namespace.clone(), network.nats[place].recipe());
            network.start_frr(&namespace, &recipe, stop)?;
        }
        network.start_sticky(options.idle_seconds)?;
        Ok(network)
    }

    /// The namespace of a host.
    pub(super) fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn ip(&self, host: &str, words: &[&str]) -> Result<String, SharingError> {
        let name = self.name(host);
        let all: Vec<&str> = ["ip", "-n", &name].iter().chain(words).copied().collect();
        Ok(run(&all)?)
    }

    fn exec(&self, host: &str, words: &[&str]) -> Result<String, SharingError> {
        let name = self.name(host);
        let all: Vec<&str> = ["ip", "netns", "exec", &name].iter().chain(words).copied().collect();
        Ok(run(&all)?)
    }

    fn add_host(&mut self, host: &str) -> Result<(), SharingError> {
        let name = self.name(host);
        run(&["ip", "netns", "add", &name])?;
        self.namespaces.push(name);
        self.ip(host, &["link", "set", "lo", "up"])?;
        let settings = "for key in all default; do echo 1 > /proc/sys/net/ipv6/conf/$key/disable_ipv6; \
                        echo 0 > /proc/sys/net/ipv4/conf/$key/rp_filter; done 2>/dev/null; \
                        echo 1 > /proc/sys/net/ipv4/ip_forward";
        self.exec(host, &["sh", "-c", settings])?;
        Ok(())
    }

    /// A pair between two hosts, both ends up.
    fn connect(&self, (end, host): (&str, &str), (peer, peer_host): (&str, &str)) -> Result<(), SharingError> {
        let [name, peer_name] = [self.name(host), self.name(peer_host)];
        run(&[
            "ip", "link", "add", "name", end, "netns", &name, "type", "veth", "peer", "name", peer, "netns", &peer_name,
        ])?;
        self.ip(host, &["link", "set", end, "up"])?;
        self.ip(peer_host, &["link", "set", peer, "up"])?;
        Ok(())
    }

    fn lay_cables(&mut self, nats: u8) -> Result<(), SharingError> {
        for host in ["subs", "access", "border", "server"] {
            self.add_host(host)?;
        }
        self.connect(("eth0", "subs"), ("subs", "access"))?;
        self.connect(("eth0", "server"), ("server", "border"))?;
        let addresses = [
            ("subs", "10.254.0.2/24", "eth0"),
            ("access", "10.254.0.1/24", "subs"),
            ("server", "192.0.2.10/24", "eth0"),
            ("border", "192.0.2.1/24", "server"),
        ];
        for (host, address, device) in addresses {
            self.ip(host, &["address", "add", address, "dev", device])?;
        }
        // All subscribers are one host, which has all of their addresses.
        self.ip("subs", &["route", "add", "local", "100.64.0.0/16", "dev", "lo"])?;
        self.ip("subs", &["route", "add", "default", "via", "10.254.0.1"])?;
        self.ip("access", &["route", "add", "100.64.0.0/16", "via", "10.254.0.2"])?;
        self.ip("server", &["route", "add", "default", "via", "192.0.2.1"])?;
        for (host, bridge, address) in [("access", "inside", ACCESS), ("border", "outside", BORDER)] {
            self.ip(host, &["link", "add", "name", bridge, "type", "bridge"])?;
            self.ip(host, &["address", "add", &format!("{address}/24"), "dev", bridge])?;
            self.ip(host, &["link", "set", bridge, "up"])?;
        }
        for number in 1..=nats {
            let nat = format!("nat{number}");
            self.add_host(&nat)?;
            for (host, bridge) in [("access", "inside"), ("border", "outside")] {
                self.connect((&nat, host), (bridge, &nat))?;
                self.ip(host, &["link", "set", &nat, "master", bridge])?;
                // Frames reach the NAT as on a wire: checksums finished, nothing joined.
                self.exec(host, &["ethtool", "-K", &nat, "tx", "off"])?;
                self.exec(&nat, &["ethtool", "-K", bridge, "gro", "off"])?;
            }
        }
        Ok(())
    }

    fn start_nat(&mut self, number: u8, options: &SharingOptions, stop: &AtomicBool) -> Result<(), SharingError> {
        let host = format!("nat{number}");
        let mut nat =
            Nat { number, namespace: self.name(&host), socket: self.folder.join(format!("{host}.sock")), natrix: None };
        self.ip(&host, &["address", "add", &nat.loopback(), "dev", "lo"])?;
        let configuration = self.folder.join(format!("{host}.toml"));
        self.write(&configuration, &nat.configuration(&options.drivers, options.subscribers))?;
        let words = [&self.binary.display().to_string(), "run", "-c", &configuration.display().to_string()];
        let mut natrix = Program::start(&nat.namespace, "natrix", &words.map(str::to_owned), &self.folder)?;
        let mut ended = Ok(());
        let is_there = || {
            ended = natrix.alive();
            ended.is_err() || self.asked(&nat, &["show", "status"]).is_some_and(|status| status["state"] == "running")
        };
        wait_for("natrix runs", stop, is_there, || "no answer".to_owned())?;
        ended?;
        nat.natrix = Some(natrix);
        self.nats.push(nat);
        Ok(())
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), SharingError> {
        fs::write(path, text).map_err(|source| SharingError::System { what: "a configuration", source })
    }

    /// FRR in a namespace: zebra, then the others, with sockets in a folder of their own.
    fn start_frr(
        &mut self,
        namespace: &str,
        daemons: &[(&'static str, String)],
        stop: &AtomicBool,
    ) -> Result<(), SharingError> {
        let folder = self.folder.join(format!("frr-{namespace}"));
        fs::create_dir_all(&folder).map_err(|source| SharingError::System { what: "a folder for FRR", source })?;
        let file = |name: &str| folder.join(name).display().to_string();
        let group = file("group");
        self.write(Path::new(&group), "root:x:0:\nfrrvty:x:900:root\n")?;
        let all = [("zebra", String::new())].into_iter().chain(daemons.iter().cloned());
        for (name, text) in all {
            self.write(Path::new(&file(&format!("{name}.conf"))), &text)?;
            let mut words = ["sh", "-c", AS_ROOT, "sh", &group].map(str::to_owned).to_vec();
            // An instance of its own has a number.
            let (program, number) = name.split_once('-').unwrap_or((name, ""));
            words.extend([format!("{FRR}/{program}"), "-f".to_owned(), file(&format!("{name}.conf"))]);
            if !number.is_empty() {
                words.extend(["-n", number].map(str::to_owned));
            }
            let more = [
                ["-u", "root"].map(str::to_owned),
                ["-g".to_owned(), "root".to_owned()],
                ["-i".to_owned(), file(&format!("{name}.pid"))],
                ["-P", "0"].map(str::to_owned),
                ["-z".to_owned(), file("zserv")],
                ["--vty_socket".to_owned(), folder.display().to_string()],
                ["--log", "stdout"].map(str::to_owned),
            ];
            words.extend(more.into_iter().flatten());
            if name == "bfdd" {
                words.extend(["--bfdctl".to_owned(), file("bfdd.sock")]);
            }
            let mut program = Program::start(namespace, name, &words, &self.folder)?;
            let sign = file(&if name == "zebra" { "zserv".to_owned() } else { format!("{name}.vty") });
            let mut ended = Ok(());
            let is_there = || {
                ended = program.alive();
                ended.is_err() || Path::new(&sign).exists()
            };
            wait_for("FRR starts", stop, is_there, || format!("no {sign}"))?;
            ended?;
            self.daemons.push(program);
        }
        Ok(())
    }

    fn start_sticky(&mut self, idle_seconds: u32) -> Result<(), SharingError> {
        let script = self.folder.join("sticky-next-hops.py");
        self.write(&script, STICKY)?;
        let mut words = vec!["python3".to_owned(), script.display().to_string(), "--hash".to_owned()];
        words.extend(["--idle".to_owned(), idle_seconds.to_string(), "--buckets".to_owned(), BUCKETS.to_string()]);
        for nat in &self.nats {
            words.extend([
                "--nat".to_owned(),
                format!("{},{},{}", nat.inside(), nat.loopback().trim_end_matches("/32"), nat.pool()),
            ]);
        }
        self.sticky = Some(Program::start(&self.name("access"), "sticky", &words, &self.folder)?);
        Ok(())
    }

    /// When the access router last changed its mind (seconds since 1970), and what it then said of
    /// each NAT: `serves`, `drains`, `is away`.
    fn said(&self) -> Option<(f64, String)> {
        let printed = self.sticky.as_ref()?.printed();
        let (at, states) = printed.lines().next_back()?.split_once(' ')?;
        Some((at.parse().ok()?, states.to_owned()))
    }

    fn is_state(&self, place: usize, state: &str) -> bool {
        let wanted = format!("{} {state}", self.nats[place].inside());
        self.said().is_some_and(|(_, states)| states.split(", ").any(|one| one == wanted))
    }

    /// Until the access router says so of a NAT.
    pub(super) fn wait_for_state(
        &self,
        place: usize,
        state: &'static str,
        stop: &AtomicBool,
    ) -> Result<(), SharingError> {
        let seen = || self.said().map_or_else(|| "it has said nothing".to_owned(), |(_, states)| states);
        wait_for("the access router knows the state of a NAT", stop, || self.is_state(place, state), seen)
    }

    /// Until subscribers get to each NAT, and answers back.
    pub(super) fn wait_until_all_serve(&self, stop: &AtomicBool) -> Result<(), SharingError> {
        for place in 0..self.nats.len() {
            self.wait_for_state(place, "serves", stop)?;
        }
        let routes = || self.ip("border", &["route", "show", "proto", "ospf"]).unwrap_or_default();
        let all = || {
            let routes = routes();
            self.nats.iter().all(|nat| routes.lines().any(|line| line.starts_with(&nat.pool())))
        };
        wait_for("the border router has a route to each pool", stop, all, routes)
    }

    /// From a moment until the access router last changed its mind.
    pub(super) fn seconds_from(&self, moment: Moment) -> f64 {
        let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.said().map_or(f64::NAN, |(at, _)| at - since(moment.1))
    }

    /// Lets the links from the access router to the NATs carry so many Mbit/s, or all they can.
    pub(super) fn limit_links(&self, mbit: Option<u32>) -> Result<(), SharingError> {
        for nat in &self.nats {
            let device = format!("nat{}", nat.number);
            match mbit {
                Some(mbit) => {
                    let rate = format!("{mbit}mbit");
                    let words = [
                        "tc", "qdisc", "add", "dev", &device, "root", "tbf", "rate", &rate, "burst", "64k", "latency",
                        "20ms",
                    ];
                    self.exec("access", &words)?;
                }
                None => drop(self.exec("access", &["tc", "qdisc", "del", "dev", &device, "root"])?),
            }
        }
        Ok(())
    }

    fn asked(&self, nat: &Nat, words: &[&str]) -> Option<serde_json::Value> {
        let output = Command::new(&self.binary)
            .args(words)
            .arg("--socket")
            .arg(&nat.socket)
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Packets forwarded so far.
    pub(super) fn packets_of_each_nat(&self) -> Vec<u64> {
        let packets = |nat| self.asked(nat, &["show", "status"])?["packets_forwarded"].as_u64();
        self.nats.iter().map(|nat| packets(nat).unwrap_or_default()).collect()
    }

    /// `natrix drain`, or its end.
    pub(super) fn drain(&self, place: usize, begins: bool) -> Result<(), SharingError> {
        let words: &[&str] = if begins { &["drain"] } else { &["drain", "--undo"] };
        let answer = self.asked(&self.nats[place], words);
        match answer.as_ref().and_then(|answer| answer["drained"].as_bool()) {
            Some(drained) if drained == begins => Ok(()),
            _ => Err(SharingError::NotYet { what: "natrix drain", seen: format!("it answers {answer:?}") }),
        }
    }

    /// Kills a NAT: its devices go with it. When.
    pub(super) fn kill(&mut self, place: usize) -> Moment {
        let moment = (Instant::now(), SystemTime::now());
        // It is dropped with its process.
        self.nats[place].natrix = None;
        moment
    }

    /// Runs something with the calling thread in a host's namespace: the sockets it makes stay
    /// there. The thread must be one that does nothing else.
    pub(super) fn inside<T: Send>(
        &self,
        host: &str,
        make: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, SharingError> {
        let name = self.name(host);
        let failed = |source| SharingError::System { what: "a socket in a namespace", source };
        let made = || {
            let file = File::open(format!("/run/netns/{name}"))?;
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(file.as_fd(), kind)?;
            make()
        };
        std::thread::scope(|scope| scope.spawn(made).join())
            .unwrap_or_else(|_| Err(io::Error::other("its thread ended")))
            .map_err(failed)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // All of them at once: the kernel takes its time with devices and sockets of each, and the
        // more the busier the machine is.
        let natrix = self.nats.iter_mut().filter_map(|nat| nat.natrix.take());
        let programs: Vec<Program> =
            self.sticky.take().into_iter().chain(natrix).chain(self.daemons.drain(..)).collect();
        programs.iter().for_each(Program::kill);
        drop(programs);
        remove_namespaces(&self.namespaces);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nat_is_known_by_the_addresses_of_its_pool() {
        for number in 1..=8 {
            let nat = Nat { number, namespace: String::new(), socket: PathBuf::new(), natrix: None };
            let pool = nat.pool();
            let first: Ipv4Addr = pool.strip_suffix("/29").unwrap().parse().unwrap();
            let last = Ipv4Addr::from_bits(first.to_bits() + 7);
            assert_eq!([first, last].map(nat_of), [Some(usize::from(number) - 1); 2], "{pool}");
        }
        assert_eq!(nat_of(Ipv4Addr::new(203, 0, 113, 3)), None);
    }

    #[test]
    fn the_recipe_is_that_of_the_documentation() {
        let nat = Nat { number: 2, namespace: String::new(), socket: PathBuf::new(), natrix: None };
        let documented = include_str!("../../../../docs/routing.md");
        for (daemon, text) in nat.recipe() {
            let block = format!("```\n! sharing {daemon}\n{text}```\n");
            assert!(documented.contains(&block), "{block}");
        }
    }
}
