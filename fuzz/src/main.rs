//! The fuzzer, started by `run.sh`. `FUZZ_TARGET` names the target; libFuzzer reads everything
//! else.

#![no_main]

use std::sync::OnceLock;

use fuzz_targets::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    fuzz_targets::target(&name).unwrap_or_else(|| {
        let names: Vec<_> = fuzz_targets::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("FUZZ_TARGET \"{name}\" is no target; there are: {}", names.join(" "));
        std::process::exit(2)
    })
}

fuzz_target!(|bytes: &[u8]| (TARGET.get_or_init(chosen).run)(bytes));
