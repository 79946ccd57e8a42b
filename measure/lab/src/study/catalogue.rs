//! The studies, by name: what each runs, draws and sets beside the paper.

mod compare;
mod data_structures;
mod limits_and_timers;
mod load;
mod nfware;
mod ospf;
mod quick_nat;

use core::fmt;

pub(crate) use limits_and_timers::FINDINGS;
pub(crate) use limits_and_timers::TIMERS;
pub(crate) use limits_and_timers::findings;
pub(crate) use limits_and_timers::timers_of as timers;

use super::plan::Plan;
use super::plan::Run;
use super::prices::Price;
use super::record::Paper;
use chart::Axis;

/// What a study is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Few points, short trials, one repetition.
    pub quick: bool,
    /// The devices, `natrix` and `netfilter` usually.
    pub devices: Vec<String>,
    /// How tester and device are connected, where a study does not vary that.
    pub transport: String,
    /// Seed of all pseudorandom orders.
    pub seed: u64,
    /// CPUs of the machine that a device may have; the tester has one more.
    pub device_cpus: Vec<usize>,
    /// CPU of the tester.
    pub tester_cpu: usize,
    /// What devices cost.
    pub prices: Vec<Price>,
}

/// A study's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyName {
    /// Natrix beside Netfilter.
    Compare,
    /// Loss and delay against sessions.
    Sessions,
    /// Loss and delay against frame sizes.
    Sizes,
    /// Whether fragments get through.
    Fragments,
    /// Loss and delay against packet filters.
    Filters,
    /// What happens past the last port.
    Exhaustion,
    /// The timer state diagram.
    Timers,
    /// Load sharing over several NATs by OSPF.
    Ospf,
    /// Throughput over frame sizes with 1 000 rules and 8 000 flows.
    QuicknatSizes,
    /// The same over cores.
    QuicknatCores,
    /// The time of a rule search.
    QuicknatRules,
    /// The table of the NFWare paper.
    Nfware,
    /// Drivers and frame sizes.
    Drivers,
    /// Data structures of the translation table.
    Tables,
    /// Mpps for 1 000 USD.
    Cost,
}

impl StudyName {
    /// All of them, in the order of the report.
    pub const ALL: [StudyName; 15] = [
        StudyName::Compare,
        StudyName::Sessions,
        StudyName::Sizes,
        StudyName::Fragments,
        StudyName::Filters,
        StudyName::Exhaustion,
        StudyName::Timers,
        StudyName::Ospf,
        StudyName::QuicknatSizes,
        StudyName::QuicknatCores,
        StudyName::QuicknatRules,
        StudyName::Nfware,
        StudyName::Drivers,
        StudyName::Tables,
        StudyName::Cost,
    ];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            StudyName::Compare => "compare",
            StudyName::Sessions => "sessions",
            StudyName::Sizes => "sizes",
            StudyName::Fragments => "fragments",
            StudyName::Filters => "filters",
            StudyName::Exhaustion => "exhaustion",
            StudyName::Timers => "timers",
            StudyName::Ospf => "ospf",
            StudyName::QuicknatSizes => "quicknat-sizes",
            StudyName::QuicknatCores => "quicknat-cores",
            StudyName::QuicknatRules => "quicknat-rules",
            StudyName::Nfware => "nfware",
            StudyName::Drivers => "drivers",
            StudyName::Tables => "tables",
            StudyName::Cost => "cost",
        }
    }

    /// Whether it measures devices to choose from. Else it is about what only Natrix has: its
    /// search for rules, its tables, its drivers, its routing.
    pub const fn has_devices(self) -> bool {
        !matches!(
            self,
            StudyName::Ospf | StudyName::QuicknatRules | StudyName::Drivers | StudyName::Tables | StudyName::Cost
        )
    }

    /// What it is going to do.
    pub fn plan(self, options: &Options) -> Plan {
        match self {
            StudyName::Compare => compare::plan(options),
            StudyName::Sessions => load::sessions(options),
            StudyName::Sizes => load::sizes(options),
            StudyName::Fragments => limits_and_timers::fragments(options),
            StudyName::Filters => load::filters(options),
            StudyName::Exhaustion => limits_and_timers::exhaustion(options),
            StudyName::Timers => limits_and_timers::timers(options),
            StudyName::Ospf => ospf::plan(options),
            StudyName::QuicknatSizes => quick_nat::sizes(options),
            StudyName::QuicknatCores => quick_nat::cores(options),
            StudyName::QuicknatRules => quick_nat::rules(options),
            StudyName::Nfware => nfware::plan(options),
            StudyName::Drivers => data_structures::drivers(options),
            StudyName::Tables => data_structures::tables(options),
            StudyName::Cost => data_structures::cost(options),
        }
    }
}

impl fmt::Display for StudyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Frame sizes of RFC 2544, and the three that `--quick` keeps.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const SIZES_QUICK: [u32; 3] = [64, 512, 1518];

impl Options {
    fn sizes(&self) -> &'static [u32] {
        if self.quick { &SIZES_QUICK } else { &SIZES }
    }

    /// The interval at which a search of a rate ends. A capacity needs no rate but one that is
    /// enough.
    const fn error(&self, test: &str) -> u32 {
        match (self.quick, test.as_bytes()) {
            (true, b"capacity") => 100_000,
            (true, _) => 20_000,
            (false, _) => 2_000,
        }
    }

    /// A command of the lab: `natrix lab TEST --dut DEVICE ...`, and what follows.
    fn lab(&self, test: &str, device: &str, more: &[(&str, String)]) -> Vec<String> {
        let mut pairs = vec![("--dut", device.to_owned())];
        if !more.iter().any(|(option, _)| *option == "--transport") {
            pairs.push(("--transport", self.transport.clone()));
        }
        if test != "probe" {
            let (repetitions, seconds) = if self.quick { (1, "0.3") } else { (5, "2") };
            pairs.push(("--repetitions", repetitions.to_string()));
            pairs.push(("--trial-seconds", seconds.to_owned()));
            if test != "latency" {
                pairs.push(("--error", self.error(test).to_string()));
            }
        }
        pairs.push(("--seed", self.seed.to_string()));
        pairs.push(("--tester-cpu", self.tester_cpu.to_string()));
        // The first but the tester's, where it is not about their number.
        let (option, given) =
            (if test == "probe" { "--device-cpu" } else { "--device-cpus" }, self.device_cpus.first());
        if let (Some(cpu), false) = (given, more.iter().any(|(other, _)| *other == option)) {
            pairs.push((option, cpu.to_string()));
        }
        let mut arguments = vec!["lab".to_owned(), test.to_owned()];
        for (option, value) in pairs.iter().map(|(option, value)| (*option, value.as_str())) {
            arguments.extend([option.to_owned(), value.to_owned()]);
        }
        for (option, value) in more {
            arguments.push((*option).to_owned());
            // An option without a value is a flag.
            arguments.extend((!value.is_empty()).then(|| value.clone()));
        }
        arguments
    }

    /// One run of each device for each x.
    fn each<'a>(
        &'a self,
        xs: &'a [u32],
        seconds: u32,
        arguments: impl Fn(&str, u32) -> Vec<String> + 'a,
    ) -> impl Iterator<Item = Run> + 'a {
        // In turns, so that both devices see the same neighbours.
        xs.iter().flat_map(move |x| {
            let run = |device: &String| Run {
                series: device.clone(),
                x: f64::from(*x),
                arguments: arguments(device, *x),
                seconds: if self.quick { seconds } else { seconds * 10 },
                load: None,
            };
            self.devices.iter().map(run).collect::<Vec<_>>()
        })
    }
}

fn axis(label: &str, logarithmic: bool) -> Axis {
    Axis { label: label.to_owned(), logarithmic, names: Vec::new() }
}

fn paper(name: &str, machine: &str) -> Paper {
    Paper { name: name.to_owned(), machine: machine.to_owned() }
}

pub(crate) const SHARED_CORES: &str = "Tester and device have a CPU each, on which each also does the kernel's work of taking its frames in; each result names under `cores` what ran where. The tester's own ceiling is over one pair; between two, with a device, it ends earlier: then what passed is a bound.";

#[cfg(test)]
pub(crate) fn test_options(quick: bool) -> Options {
    Options {
        quick,
        devices: vec!["natrix".to_owned(), "netfilter".to_owned()],
        transport: "af-xdp".to_owned(),
        seed: 1,
        device_cpus: vec![1],
        tester_cpu: 0,
        prices: Price::of_the_paper(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_studies_take_ten_minutes_in_all() {
        let options = test_options(true);
        let seconds: u32 =
            StudyName::ALL.iter().flat_map(|study| study.plan(&options).runs).map(|run| run.seconds).sum();
        assert!(seconds <= 600, "{seconds}");
    }

    #[test]
    fn each_run_has_the_seed_of_the_study() {
        for quick in [false, true] {
            let options = Options { seed: 77, ..test_options(quick) };
            for study in StudyName::ALL {
                for run in study.plan(&options).runs {
                    let seeds: Vec<&[String]> = run.arguments.windows(2).filter(|pair| pair[0] == "--seed").collect();
                    assert!(matches!(&seeds[..], [pair] if pair[1] == "77"), "{study}: {run:?}");
                }
            }
        }
    }

    #[test]
    fn each_run_is_one_of_its_own() {
        for quick in [false, true] {
            for study in StudyName::ALL {
                let plan = study.plan(&test_options(quick));
                assert!(!plan.runs.is_empty() && !plan.question.is_empty() && !plan.paper.name.is_empty(), "{study}");
                assert!(!plan.charts.is_empty() || !plan.tables.is_empty(), "{study}");
                for (position, run) in plan.runs.iter().enumerate() {
                    assert!(
                        plan.runs[..position]
                            .iter()
                            .all(|other| (&other.arguments, other.load) != (&run.arguments, run.load)),
                        "{study}: {run:?}"
                    );
                    assert!(matches!(run.arguments[0].as_str(), "lab" | "bench"), "{run:?}");
                    assert!(run.arguments.iter().all(|argument| !argument.contains(' ')), "{run:?}");
                }
            }
        }
    }
}
