//! `natrix init`: a first configuration from what the machine has.

use core::fmt::Write as _;
use std::fs::OpenOptions;
use std::io;
use std::io::BufRead;
use std::io::IsTerminal;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cli::CliError;
use cli::Init;
use config::Machine;
use control::Fault;
use control::Prefix;

use crate::failure::Failure;
use crate::link;
use crate::machine;
use crate::machine::Device;
use crate::machine::Files;
use crate::machine::FreeHugepages;
use crate::machine::PAGE_2M_KIB;

/// Mappings to try, until the memory for them is there. More than a million only on hugepages,
/// which are reserved for this.
const MAPPINGS: [u32; 11] =
    [64_000_000, 32_000_000, 16_000_000, 8_000_000, 4_000_000, 2_000_000, 1_000_000, 500_000, 200_000, 100_000, 50_000];
const MAPPINGS_WITHOUT_HUGEPAGES: u32 = 1_000_000;
/// Of the ordinary memory that is free, the part that a first configuration may take.
const SHARE_OF_MEMORY: u64 = 4;
/// The MTU of a port unless its interface says another.
const MTU: u64 = 1_500;
/// MTUs that an interface may have, and the largest beside a port with AF_XDP.
const MTU_LEAST: u64 = 68;
const MTU_MOST: u64 = 9_216;
const MTU_MOST_OF_XDP: u64 = 3_686;
/// Most workers in a first configuration.
const WORKERS_MAX: usize = 4;

/// What a configuration is made of.
#[derive(Debug)]
struct Answers {
    inside: String,
    outside: String,
    inside_address: (Ipv4Addr, u8),
    outside_address: (Ipv4Addr, u8),
    /// Of both, if it is not the usual one.
    inside_mtu: Option<u64>,
    outside_mtu: Option<u64>,
    gateway: Ipv4Addr,
    pool: Vec<String>,
    subscribers: Vec<String>,
    inside_gateway: Option<Ipv4Addr>,
    workers: usize,
    memory: Memory,
    mappings: u32,
    /// The kernel has AF_XDP sockets.
    has_xdp: bool,
}

/// What the machine has free, in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    hugepages: FreeHugepages,
    ordinary_bytes: u64,
}

/// Asks what the arguments do not say, if there is a terminal.
struct Asker<'a> {
    input: &'a mut dyn BufRead,
    out: &'a mut dyn Write,
    is_terminal: bool,
}

impl Asker<'_> {
    /// The answer to a question; `proposal` if the answer is empty.
    fn ask(&mut self, flag: &str, question: &str, proposal: Option<&str>) -> Result<String, Failure> {
        if !self.is_terminal {
            let fault = Fault::new(flag, "is missing, and there is no terminal to ask", format!("give {flag}"));
            return Err(CliError::from(fault).into());
        }
        loop {
            let proposed = proposal.map(|word| format!(" [{word}]")).unwrap_or_default();
            write!(self.out, "{question}{proposed}: ")?;
            self.out.flush()?;
            let mut line = String::new();
            if self.input.read_line(&mut line)? == 0 {
                let fault = Fault::new(flag, "was not answered", format!("give {flag}"));
                return Err(CliError::from(fault).into());
            }
            match (line.trim(), proposal) {
                ("", None) => {}
                ("", Some(word)) => return Ok(word.to_owned()),
                (word, _) => return Ok(word.to_owned()),
            }
        }
    }
}

/// `natrix init`.
pub(crate) fn run(arguments: &Init, out: &mut dyn Write) -> Result<(), Failure> {
    let files = Files::new(Path::new("/"));
    let devices = machine::devices(&files, &machine::own_addresses());
    let to_stdout = arguments.output == Path::new("-");
    if !to_stdout && !arguments.force && arguments.output.exists() {
        let fault = Fault::new("configuration", "exists already", "name another file with --output, or use --force");
        return Err(CliError::from(fault.seen(arguments.output.display().to_string())).into());
    }
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let (mut input, mut questions) = (io::stdin().lock(), io::stderr());
    let mut asker = Asker { input: &mut input, out: &mut questions, is_terminal };
    let mut answers = gather(arguments, &files, &devices, &mut asker)?;
    let file = arguments.output.display().to_string();
    let machine = Machine { cpus: None, ..daemon::machine::this_machine() };
    let needed = fit(&mut answers, &file, &machine)?;
    let text = configuration(&answers);
    if to_stdout {
        out.write_all(text.as_bytes())?;
        return Ok(());
    }
    save(&arguments.output, &text, arguments.force).map_err(|error| {
        let fault = Fault::new("configuration", "cannot be written", "create its folder, or use --output");
        CliError::from(fault.seen(format!("{file}: {error}")))
    })?;
    writeln!(out, "{}", about_memory(&answers, needed))?;
    writeln!(out, "{file}: written and valid\n\nnext:\n  natrix doctor -c {file}\n  natrix run -c {file}")?;
    writeln!(out, "note: event log: {}; [log.store] in the file is ready for it", config::NO_LOG)?;
    if text.contains("net_af_xdp") {
        let example = "/usr/share/doc/natrix/examples/af-xdp.conf";
        writeln!(out, "note: AF_XDP needs more rights than natrix.service has; {example} says how to give them")?;
        let is_virtual_cable = |device: &str| matches!(link::other_end(device), Ok(Some(_)));
        about_queues(&answers, &files, &is_virtual_cable).iter().try_for_each(|note| writeln!(out, "{note}"))?;
    }
    for device in [&answers.inside, &answers.outside].into_iter().filter(|name| !machine::is_pci(name)) {
        writeln!(out, "{}", about_kernel(device))?;
    }
    Ok(())
}

fn save(path: &Path, text: &str, force: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o640);
    // Without --force a file that appeared meanwhile stays.
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(path)?.write_all(text.as_bytes())
}

fn gather(arguments: &Init, files: &Files, devices: &[Device], asker: &mut Asker<'_>) -> Result<Answers, Failure> {
    let route = machine::default_route(files);
    let known: Vec<String> = devices.iter().map(described).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let outside_proposal = route.as_ref().map(|(name, _)| name.as_str());
    let inside_proposal = devices
        .iter()
        .filter(|device| Some(device.name.as_str()) != outside_proposal)
        // The first of several that are equal.
        .rev()
        .max_by_key(|device| device.addresses.iter().any(|(address, _)| is_internal(*address)))
        .map(|device| device.name.as_str());
    let inside = match &arguments.inside {
        Some(name) => name.clone(),
        None => {
            let question = format!("interfaces: {known}\nInterface towards the subscribers");
            asker.ask("--inside", &question, inside_proposal)?
        }
    };
    let outside = match &arguments.outside {
        Some(name) => name.clone(),
        None => {
            asker.ask("--outside", "Interface towards the Internet", outside_proposal.filter(|name| *name != inside))?
        }
    };
    for (flag, name) in [("--inside", &inside), ("--outside", &outside)] {
        if !machine::is_pci(name) && !devices.iter().any(|device| device.name == *name) {
            let is_there = !name.contains('/') && files.exists(&format!("sys/class/net/{name}"));
            let problem = if is_there { "cannot be used" } else { "no such interface" };
            let fault = Fault::new(flag, problem, format!("use a PCI address, or one of: {known}"));
            return Err(CliError::from(fault.seen(name.as_str())).into());
        }
    }
    if inside == outside {
        let fault = Fault::new("--outside", "is the interface inside, too", "name two interfaces");
        return Err(CliError::from(fault.seen(outside)).into());
    }
    let pool: Vec<String> = if arguments.pool.is_empty() {
        let question = "External addresses for the subscribers (addresses or prefixes, separated by commas)";
        separated(&asker.ask("--pool", question, None)?)
    } else {
        arguments.pool.iter().map(Prefix::to_string).collect()
    };
    let inside_address = address_of("--inside-address", arguments.inside_address.as_deref(), &inside, devices)?;
    let outside_address = address_of("--outside-address", arguments.outside_address.as_deref(), &outside, devices)?;
    let gateway = arguments.gateway.or_else(|| route.filter(|(name, _)| *name == outside).map(|(_, hop)| hop));
    let gateway = gateway.ok_or_else(|| {
        let remedy = "give the router outside as --gateway ADDRESS";
        CliError::from(Fault::new("--gateway", format!("the kernel has no default route by {outside}"), remedy))
    })?;
    let subscribers = match (arguments.subscribers.as_slice(), arguments.inside_gateway) {
        ([], None) => vec![connected(inside_address)],
        ([], Some(router)) => {
            let question = format!("Networks of the subscribers behind {router} (prefixes, separated by commas)");
            let answer = asker.ask("--subscribers", &question, None)?;
            separated(&answer).iter().map(|part| prefix(part)).collect::<Result<_, _>>()?
        }
        (given, _) => given.iter().map(Prefix::to_string).collect(),
    };
    let connected = connected(inside_address);
    if arguments.inside_gateway.is_some() && subscribers.iter().all(|prefix| *prefix == connected) {
        let remedy = "name those behind the router, or leave --inside-gateway out";
        let fault = Fault::new("--subscribers", "are all on the network inside", remedy);
        return Err(CliError::from(fault.seen(connected)).into());
    }
    on_network("--gateway", gateway, "outside", outside_address)?;
    match arguments.inside_gateway {
        Some(router) => on_network("--inside-gateway", router, "inside", inside_address)?,
        None => {
            let is_on_link = |prefix: &&String| {
                let parsed = prefix.parse::<Prefix>().ok();
                let shorter = |prefix: &Prefix| prefix.length().min(inside_address.1);
                parsed.is_some_and(|it| contains((inside_address.0, shorter(&it)), it.address()))
            };
            if let Some(far) = subscribers.iter().find(|prefix| !is_on_link(prefix)) {
                let problem = format!("are not on the network inside, {connected}");
                let remedy =
                    "give the router that leads to them as --inside-gateway ADDRESS, or another --inside-address";
                return Err(CliError::from(Fault::new("--subscribers", problem, remedy).seen(far.as_str())).into());
            }
        }
    }
    let cpus = machine::numbers(&files.text("sys/devices/system/cpu/online")).len();
    let memory_kib = files.field("proc/meminfo", "MemAvailable").trim_end_matches(" kB").parse().unwrap_or(u64::MAX);
    let has_xdp = files.exists("proc/sys/net/core/bpf_jit_enable") && files.exists("sys/kernel/btf");
    Ok(Answers {
        inside_mtu: mtu(files, &inside, has_xdp),
        outside_mtu: mtu(files, &outside, has_xdp),
        inside,
        outside,
        inside_address,
        outside_address,
        gateway,
        pool,
        subscribers,
        inside_gateway: arguments.inside_gateway,
        workers: (cpus / 2).clamp(1, WORKERS_MAX),
        memory: Memory { hugepages: files.free_hugepages(), ordinary_bytes: memory_kib.saturating_mul(1024) },
        mappings: MAPPINGS_WITHOUT_HUGEPAGES,
        has_xdp,
    })
}

/// The MTU of an interface of the kernel, as far as a port can have it; none if it is the usual
/// one.
fn mtu(files: &Files, name: &str, has_xdp: bool) -> Option<u64> {
    let most = if has_xdp { MTU_MOST_OF_XDP } else { MTU_MOST };
    let mtu = files.number(&format!("sys/class/net/{name}/mtu"));
    Some(mtu.clamp(MTU_LEAST, most)).filter(|_| mtu != 0 && mtu != MTU)
}

/// The parts of an answer with commas.
fn separated(answer: &str) -> Vec<String> {
    answer.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// A prefix of subscribers that was typed.
fn prefix(text: &str) -> Result<String, Failure> {
    let parsed = text.parse::<Prefix>().map(|prefix| prefix.to_string());
    parsed.map_err(|_| {
        let fault = Fault::new("--subscribers", "is no IPv4 prefix", "write it as 100.64.8.0/22").seen(text);
        CliError::from(fault).into()
    })
}

/// Whether an address is on the network of an interface with this one.
fn contains((own, length): (Ipv4Addr, u8), address: Ipv4Addr) -> bool {
    connected((own, length)) == connected((address, length))
}

/// Refuses a router that is not on the network of its interface.
fn on_network(flag: &str, router: Ipv4Addr, side: &str, own: (Ipv4Addr, u8)) -> Result<(), Failure> {
    if contains(own, router) {
        return Ok(());
    }
    let problem = format!("is not on the network {side}, {}", connected(own));
    let remedy = format!("give a router on this network, or another --{side}-address");
    Err(CliError::from(Fault::new(flag, problem, remedy).seen(router.to_string())).into())
}

/// The network of an interface with this address.
fn connected((address, length): (Ipv4Addr, u8)) -> String {
    let network = address.to_bits() & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
    format!("{}/{length}", Ipv4Addr::from_bits(network))
}

fn described(device: &Device) -> String {
    let address = device.addresses.first().map(|(address, length)| format!(" {address}/{length}"));
    let pci = device.pci.as_ref().map(|pci| format!(" PCI {pci}"));
    format!("{}{}{}", device.name, address.unwrap_or_default(), pci.unwrap_or_default())
}

/// Private (RFC 1918) or shared (RFC 6598) address space.
fn is_internal(address: Ipv4Addr) -> bool {
    address.is_private() || (address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64)
}

fn address_of(flag: &str, given: Option<&str>, name: &str, devices: &[Device]) -> Result<(Ipv4Addr, u8), Failure> {
    let wrong = |problem: &str, seen: &str| {
        let fault = Fault::new(flag, problem, format!("give {flag} ADDRESS/LENGTH")).seen(seen);
        Failure::from(CliError::from(fault))
    };
    if let Some(text) = given {
        let parsed = text.split_once('/').and_then(|(address, length)| {
            let length: u8 = length.parse().ok().filter(|length| *length <= 32)?;
            Some((address.parse().ok()?, length))
        });
        return parsed.ok_or_else(|| wrong("is no address with a prefix length", text));
    }
    let own = devices.iter().find(|device| device.name == name).and_then(|device| device.addresses.first());
    own.copied().ok_or_else(|| wrong("the kernel has no IPv4 address on this interface", name))
}

/// The driver string of a port: a PCI device as it is, an interface of the kernel by its sockets.
fn driver(name: &str, number: usize, has_xdp: bool) -> String {
    match (machine::is_pci(name), has_xdp) {
        (true, _) => name.to_owned(),
        (false, true) => format!("net_af_xdp{number},iface={name}"),
        (false, false) => format!("net_af_packet{number},iface={name}"),
    }
}

fn configuration(answers: &Answers) -> String {
    let list = |words: &[String]| words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    let mut text = String::from(
        "# Written by natrix init. docs/configuration.md explains every key; natrix check reports faults.\n",
    );
    let sides = [
        ("inside", &answers.inside, answers.inside_address, answers.inside_mtu),
        ("outside", &answers.outside, answers.outside_address, answers.outside_mtu),
    ];
    for (number, (side, name, (address, length), mtu)) in sides.into_iter().enumerate() {
        // A name may have quotation marks in it.
        let driver = serde_json::Value::from(driver(name, number, answers.has_xdp));
        let _ = write!(
            text,
            "\n[[interface]]\nname = \"{side}\"\nrealm = \"{side}\"\ndriver = {driver}\naddresses = [\"{address}/{length}\"]\n"
        );
        if let Some(mtu) = mtu {
            let _ = writeln!(text, "mtu = {mtu}");
        }
    }
    let own = connected(answers.inside_address);
    let behind = answers.subscribers.iter().filter(|prefix| **prefix != own);
    for prefix in behind.filter(|_| answers.inside_gateway.is_some()) {
        let via = answers.inside_gateway.map(|hop| hop.to_string()).unwrap_or_default();
        let _ = write!(text, "\n[[route]]\nprefix = \"{prefix}\"\nvia = \"{via}\"\n");
    }
    let _ = write!(
        text,
        "\n[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"{}\"\n\n\
         # The router outside must send these addresses to {}.\n\
         [[pool]]\nname = \"main\"\naddresses = [{}]\nsubscribers = [{}]\n\n\
         [workers]\ncount = {}\n",
        answers.gateway,
        answers.outside_address.0,
        list(&answers.pool),
        list(&answers.subscribers),
        answers.workers,
    );
    let _ = write!(
        text,
        "\n# What the free memory has room for; natrix show status says how full the tables are.\n\
         [tables]\nmappings = {}\nextra_sessions = {}\n",
        answers.mappings,
        answers.mappings / 2,
    );
    // How long it may be kept is for the law to say.
    text += "\n# Without a log, who had an address and port cannot be answered later. To record it, remove\n\
             # the three # below, and set how long to keep the records; see docs/logging.md.\n\
             # [log.store]\n# path = \"/var/log/natrix/log\"\n# retention = \"180 d\"\n";
    text
}

/// Chooses the most mappings whose tables have room in the free hugepages, or, where there are too
/// few of them, in a part of the ordinary memory. Returns the bytes that the instance takes.
fn fit(answers: &mut Answers, file: &str, machine: &Machine) -> Result<u64, Failure> {
    let Memory { hugepages, ordinary_bytes } = answers.memory;
    let mut needed = 0;
    for mappings in MAPPINGS {
        answers.mappings = mappings;
        let config = config::parse_for(&configuration(answers), file, machine).map_err(|faults| {
            // Without a written file, lines are of no use.
            Failure::Configuration(faults.into_iter().map(|fault| config::Fault { line: None, ..fault }).collect())
        })?;
        needed = config.memory_needed().total_bytes();
        let in_ordinary = mappings <= MAPPINGS_WITHOUT_HUGEPAGES && needed <= ordinary_bytes / SHARE_OF_MEMORY;
        if needed <= hugepages.bytes() || in_ordinary {
            break;
        }
    }
    Ok(needed)
}

/// What AF_XDP would miss: a port serves the first queue of its interface, and what arrives on
/// another goes to the kernel.
fn about_queues(answers: &Answers, files: &Files, is_virtual_cable: &dyn Fn(&str) -> bool) -> Vec<String> {
    let ports = [&answers.inside, &answers.outside].into_iter().filter(|name| !machine::is_pci(name));
    let with_queues = ports.map(|name| (name, files.receive_queues(name))).filter(|(_, queues)| *queues > 1);
    let note = |(name, queues): (&String, usize)| {
        let command = machine::queues_command(name, 1, is_virtual_cable(name));
        format!("note: {name} has {queues} queues, of which AF_XDP serves 1; reduce them to one:\n  {command}")
    };
    with_queues.map(note).collect()
}

/// What keeps the kernel from what is for Natrix on an interface that both see.
fn about_kernel(device: &str) -> String {
    let key = format!("net.ipv4.conf.{}.forwarding", device.replace('.', "/"));
    format!(
        "note: while natrix runs, it has {device} to itself; log in through another interface, remove the kernel's \
         address, and keep the kernel from forwarding what arrives there (net.ipv4.ip_forward):\n  \
         ip address flush dev {device}\n  sysctl -w {key}=0"
    )
}

/// What was written about memory, and why.
fn about_memory(answers: &Answers, needed: u64) -> String {
    let FreeHugepages { small, large, small_in_use } = answers.memory.hugepages;
    let mib = needed.div_ceil(1 << 20);
    let seen = format!("{small} hugepages of 2 MiB and {large} of 1 GiB are free");
    let mappings = control::count_text(answers.mappings.into());
    let does = format!("memory: {seen}; tables for {mappings} mappings, with packet buffers {mib} MiB,");
    if needed <= answers.memory.hugepages.bytes() {
        return format!("{does} lie on them");
    }
    let pages = small_in_use + needed.div_ceil(PAGE_2M_KIB << 10);
    format!(
        "{does} lie on ordinary pages, which costs speed; to reserve hugepages for them:\n  \
         echo {pages} > /sys/kernel/mm/hugepages/hugepages-{PAGE_2M_KIB}kB/nr_hugepages"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Tree;

    const ROUTE: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                         eth1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n";

    fn device(name: &str, address: [u8; 4], length: u8) -> Device {
        let addresses = vec![(Ipv4Addr::from(address), length)];
        Device { name: name.to_owned(), pci: None, driver: None, addresses }
    }

    fn devices() -> Vec<Device> {
        vec![device("eth0", [100, 64, 0, 1], 24), device("eth1", [192, 0, 2, 2], 24)]
    }

    fn arguments(words: &[&str]) -> Init {
        let words = ["natrix", "init"].iter().chain(words);
        match cli::try_parse_from(words).unwrap() {
            cli::Command::Init(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    fn answers(words: &[&str], typed: &str, is_terminal: bool) -> Result<Answers, Failure> {
        let files = [
            ("proc/net/route", ROUTE),
            ("sys/devices/system/cpu/online", "0-5"),
            ("proc/meminfo", "MemAvailable: 1000000 kB"),
            ("sys/class/net/lo/mtu", "65536"),
        ];
        let tree = Tree::new(&format!("init{}{}", words.len(), typed.len()), &files);
        let (mut input, mut out) = (typed.as_bytes(), Vec::new());
        let mut asker = Asker { input: &mut input, out: &mut out, is_terminal };
        gather(&arguments(words), &tree.files(), &devices(), &mut asker)
    }

    fn check(answers: &Answers) -> config::Config {
        config::parse(&configuration(answers), "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn three_answers_make_a_valid_configuration() {
        let made = answers(&[], "\n\n203.0.113.0/28, 203.0.113.64\n", true).unwrap();
        assert_eq!((made.inside.as_str(), made.outside.as_str()), ("eth0", "eth1"));
        let config = check(&made);
        assert_eq!(config.nat.pools[0].addresses.len(), 17);
        assert_eq!(config.workers.count, 3);
    }

    #[test]
    fn the_store_of_the_log_only_waits_to_be_wanted() {
        let text = configuration(&answers(&[], "\n\n203.0.113.0/28\n", true).unwrap());
        assert!(config::parse(&text, "test.toml").unwrap().event_log.is_none());
        let (before, block) = text.split_once("# [log.store]").unwrap();
        let wanted = format!("{before}[log.store]{}", block.replace("# ", ""));
        let store = config::parse(&wanted, "test.toml").unwrap().event_log.unwrap().store.unwrap();
        assert_eq!(store.path, Path::new("/var/log/natrix/log"));
        assert_eq!(store.retention.map(|kept| kept.as_secs()), Some(180 * 86_400));
    }

    #[test]
    fn the_tables_fit_the_memory_that_is_free() {
        let mut made = answers(&[], "\n\n203.0.113.0/28, 203.0.113.64\n", true).unwrap();
        let machine = Machine { cpus: None, ..daemon::machine::this_machine() };
        let mut with = |small: u64, large: u64, ordinary_bytes: u64| {
            made.memory = Memory { hugepages: FreeHugepages { small, large, small_in_use: 980 }, ordinary_bytes };
            let needed = fit(&mut made, "test.toml", &machine).unwrap();
            let config = check(&made);
            assert_eq!(config.memory_needed().total_bytes(), needed);
            (made.mappings, needed, about_memory(&made, needed))
        };
        let (mappings, needed, said) = with(0, 0, 64 << 30);
        assert_eq!(mappings, 1_000_000, "hugepages are what more is for");
        // Those that others use remain theirs.
        let pages = 980 + needed.div_ceil(2 << 20);
        assert!(said.ends_with(&format!("echo {pages} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")));
        let (mappings, needed, said) = with(0, 8, 64 << 30);
        assert!(mappings > 1_000_000 && needed <= 8 << 30 && said.ends_with("lie on them"), "{mappings}: {said}");
        let (mappings, needed, said) = with(160, 0, 0);
        assert!(mappings < 1_000_000 && needed <= 320 << 20 && said.ends_with("lie on them"), "{mappings}: {said}");
        let (mappings, needed, _) = with(0, 0, 1 << 30);
        assert!(mappings < 1_000_000 && needed <= 256 << 20, "{mappings}: {needed}");
        // Less than the least is for natrix check to refuse.
        assert_eq!(with(0, 0, 1 << 20).0, 50_000);
    }

    #[test]
    fn the_mtu_is_that_of_the_interface() {
        let tree = Tree::new("mtu", &[("sys/class/net/eth0/mtu", "1500\n"), ("sys/class/net/eth1/mtu", "1300\n")]);
        let mut made = answers(&[], "\n\n203.0.113.0/28\n", true).unwrap();
        made.inside_mtu = mtu(&tree.files(), &made.inside, true);
        made.outside_mtu = mtu(&tree.files(), &made.outside, true);
        assert_eq!(configuration(&made).matches("mtu = ").count(), 1, "the usual one is not written");
        let of_ports = |made: &Answers| check(made).ports.iter().map(|port| port.mtu).collect::<Vec<_>>();
        assert_eq!(of_ports(&made), [1_500, 1_300]);
        // No more than a port can have.
        let of = |mtu_of_device: &str, has_xdp| {
            let tree = Tree::new("mtu-of", &[("sys/class/net/eth1/mtu", mtu_of_device)]);
            mtu(&tree.files(), "eth1", has_xdp)
        };
        assert_eq!([of("9000", false), of("65536", false), of("9000", true)], [Some(9_000), Some(9_216), Some(3_686)]);
        assert_eq!([of("64", true), of("", true)], [Some(68), None]);
        for mtu in [68, 9_216] {
            made.outside_mtu = Some(mtu);
            assert_eq!(of_ports(&made), [1_500, mtu as u16]);
        }
    }

    #[test]
    fn the_kernel_must_leave_an_interface_alone() {
        let said = about_kernel("eth1");
        assert!(
            said.ends_with(":\n  ip address flush dev eth1\n  sysctl -w net.ipv4.conf.eth1.forwarding=0"),
            "{said}"
        );
        assert!(about_kernel("eth1.7").ends_with("sysctl -w net.ipv4.conf.eth1/7.forwarding=0"));
    }

    #[test]
    fn queues_that_af_xdp_misses_are_named() {
        let queues = [0, 1].map(|queue| format!("sys/class/net/eth1/queues/rx-{queue}/rps_cpus"));
        let one = "sys/class/net/eth0/queues/rx-0/rps_cpus";
        let tree = Tree::new("queues", &[(one, "0"), (&queues[0], "0"), (&queues[1], "0")]);
        let made = answers(&[], "\n\n203.0.113.0/28\n", true).unwrap();
        let note = "note: eth1 has 2 queues, of which AF_XDP serves 1; reduce them to one:\n  ethtool -L eth1";
        assert_eq!(about_queues(&made, &tree.files(), &|_| false), [format!("{note} combined 1")]);
        assert_eq!(about_queues(&made, &tree.files(), &|_| true), [format!("{note} rx 1 tx 1")]);
    }

    #[test]
    fn subscribers_behind_a_router_must_be_named() {
        let words = ["--inside=eth0", "--outside=eth1", "--pool=203.0.113.0/29", "--inside-gateway=100.64.0.2"];
        let failure = answers(&words, "", false).unwrap_err().to_string();
        let wanted = "--subscribers: is missing, and there is no terminal to ask; give --subscribers";
        assert_eq!(failure, wanted);
        let config = check(&answers(&words, "100.64.8.0/22, 100.64.32.0/24\n", true).unwrap());
        assert_eq!(config.nat.pools[0].subscribers.len(), 2);
        let failure = answers(&words, "100.64.8.0-22\n", true).unwrap_err().to_string();
        assert!(failure.starts_with("--subscribers: is no IPv4 prefix (100.64.8.0-22)"), "{failure}");
        // A network of the interface itself needs no router.
        let connected = [&words[..], &["--subscribers=100.64.0.0/24,100.64.8.0/22"]].concat();
        check(&answers(&connected, "", false).unwrap());
        let alone = [&words[..], &["--subscribers=100.64.0.0/24"]].concat();
        let failure = answers(&alone, "", false).unwrap_err().to_string();
        assert!(failure.starts_with("--subscribers: are all on the network inside (100.64.0.0/24)"), "{failure}");
    }

    #[test]
    fn flags_leave_nothing_to_ask() {
        let words = [
            "--inside=0000:3b:00.0",
            "--outside=eth1",
            "--pool=203.0.113.0/29",
            "--inside-address=10.255.0.1/30",
            "--subscribers=100.64.0.0/16",
            "--inside-gateway=10.255.0.2",
        ];
        let config = check(&answers(&words, "", false).unwrap());
        assert_eq!(config.ports[0].driver, "0000:3b:00.0");
        assert_eq!(config.nat.interfaces[0].addresses[0].prefix_length, 30);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (words, wanted) in [
            (&["--inside=eth0", "--outside=eth1"][..], "--pool: is missing"),
            (&["--inside=eth9", "--outside=eth1", "--pool=203.0.113.1"], "--inside: no such interface (eth9)"),
            (&["--inside=lo", "--outside=eth1", "--pool=203.0.113.1"], "--inside: cannot be used (lo)"),
            (&["--inside=0000:3b:00.0", "--outside=eth1", "--pool=203.0.113.1"], "--inside-address: the kernel has no"),
            (&["--inside=eth1", "--outside=eth0", "--pool=203.0.113.1"], "--gateway: the kernel has no default route"),
            (
                &["--inside=eth0", "--outside=eth0", "--pool=203.0.113.1"],
                "--outside: is the interface inside, too (eth0)",
            ),
            (
                &["--inside=eth0", "--outside=eth1", "--pool=203.0.113.1", "--subscribers=10.0.0.0/8"],
                "--subscribers: are not on the network inside, 100.64.0.0/24 (10.0.0.0/8); give the router that leads to \
                 them as --inside-gateway ADDRESS",
            ),
            (
                &["--inside=eth0", "--outside=eth1", "--pool=203.0.113.1", "--gateway=198.51.100.1"],
                "--gateway: is not on the network outside, 192.0.2.0/24 (198.51.100.1)",
            ),
            (
                &[
                    "--inside=eth0",
                    "--outside=eth1",
                    "--pool=203.0.113.1",
                    "--subscribers=100.64.8.0/22",
                    "--inside-gateway=10.0.0.1",
                ],
                "--inside-gateway: is not on the network inside, 100.64.0.0/24 (10.0.0.1)",
            ),
        ] {
            let failure = answers(words, "", false).unwrap_err().to_string();
            assert!(failure.starts_with(wanted), "{failure}");
        }
    }
}
