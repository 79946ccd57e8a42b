//! Where routes come from the kernel, the configuration need not lead to what they lead to.

/// The example of a carrier, whose routes come from a routing daemon. `kernel` and `routing` are
/// lines of the file.
fn carrier(device: &str, routing: &str, more: &str) -> String {
    let example = include_str!("../../../examples/dpdk-pci.toml");
    let (before, after) = example.split_once("[[route]]").unwrap_or((example, ""));
    let (_, after) = after.split_once("[[pool]]").unwrap_or(("", ""));
    let text = format!("{before}[[pool]]{after}\n{routing}\n{more}");
    let of = |number: u8| if device.is_empty() { String::new() } else { format!("\n{device} = \"nx-{number}\"") };
    let [access, core] = ["addresses = [\"10.255.0.1/30\"]", "addresses = [\"192.0.2.2/30\"]"];
    let text = text.replace("extra_sessions", "flows = 1000\nextra_sessions");
    text.replace(access, &format!("{access}{}", of(0))).replace(core, &format!("{core}{}", of(1)))
}

fn faults(text: &str) -> Vec<String> {
    config::parse(text, "a.toml").err().into_iter().flatten().map(|fault| fault.to_string()).collect()
}

const LEARNS: &str = "[routing]\nkernel = true";

/// What leads to addresses that no interface and no static route has.
const ELSEWHERE: &str = "
[[forward]]
protocol = \"tcp\"
external = \"203.0.113.1\"
ports = 1
inside = \"100.64.7.1\"

[[rule]]
action = \"pass\"
protocol = \"gre\"
inside = \"100.64.9.0/24\"
outside = \"198.18.0.0/15\"

[[rule]]
action = \"redirect\"
protocol = \"udp\"
outside = \"198.18.0.1/32\"
outside_ports = 53
targets = [\"198.18.0.2\"]
";

#[test]
fn learned_routes_need_no_static_ones() {
    assert_eq!(faults(&carrier("kernel", LEARNS, "")), Vec::<String>::new());
    assert_eq!(faults(&carrier("kernel", LEARNS, ELSEWHERE)), Vec::<String>::new());
}

#[test]
fn without_learned_routes_all_must_be_reached() {
    for text in [carrier("", "", ELSEWHERE), carrier("kernel", "", ELSEWHERE)] {
        let faults = faults(&text);
        let at = |problem: &str| faults.iter().filter(|fault| fault.contains(problem)).count();
        assert_eq!(at("cannot be reached by any inside"), 3, "{faults:?}");
        assert_eq!(at("cannot be reached by any outside"), 3, "{faults:?}");
        assert_eq!(at("leads to no subscriber"), 1, "{faults:?}");
    }
}

#[test]
fn an_interface_without_a_device_learns_nothing() {
    let text = carrier("kernel", LEARNS, "").replace("kernel = \"nx-0\"\n", "");
    let faults = faults(&text);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("leads to no subscriber"), "{faults:?}");
    assert!(faults[1].contains("cannot be reached by any inside interface or route (100.64.0.0/10)"), "{faults:?}");
}

#[test]
fn a_sub_interface_learns_by_the_device_of_its_port() {
    let more = "[[interface]]\nname = \"more\"\nrealm = \"inside\"\nvrf = \"red\"\nparent = \"access\"\nvlan = 7\n\
                addresses = [\"10.255.0.5/30\"]\n[[pool]]\nname = \"red\"\naddresses = [\"198.51.100.128\"]\n\
                vrfs = [\"red\"]\nsubscribers = [\"100.64.0.0/10\"]";
    let text = |device: &str| {
        let first = carrier(device, LEARNS, more);
        first.replace("name = \"main\"", "name = \"main\"\nvrfs = [\"default\"]").replace("nx-1", "nx-9")
    };
    assert_eq!(faults(&text("kernel")), Vec::<String>::new());
    let without = text("kernel").replace("kernel = \"nx-0\"\n", "");
    assert_eq!(faults(&without).iter().filter(|fault| fault.contains("(100.64.0.0/10)")).count(), 2);
}

#[test]
fn links_to_routers_of_learned_routes_are_no_subscribers() {
    let more = "[[interface]]\nname = \"more\"\nrealm = \"inside\"\nvrf = \"red\"\ndriver = \"0000:3b:00.2\"\n\
                kernel = \"nx-2\"\naddresses = [\"10.255.0.2/30\"]\n[[rule]]\naction = \"pass\"\nprotocol = \"gre\"\n\
                inside = \"10.0.0.0/8\"\noutside = \"198.18.0.0/15\"";
    assert_eq!(faults(&carrier("kernel", LEARNS, more)), Vec::<String>::new());
    let served =
        carrier("kernel", LEARNS, more).replace("[\"100.64.0.0/10\"]", "[\"100.64.0.0/10\", \"10.255.0.0/30\"]");
    assert_eq!(faults(&served).len(), 1, "{:?}", faults(&served));
}
