//! Compiles the C shim and links libdpdk when the feature `dpdk` is on.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim");
    if env::var_os("CARGO_FEATURE_DPDK").is_none() {
        return;
    }
    let mut shim = cc::Build::new();
    shim.file("shim/dpdk.c").file("shim/hash.c").file("shim/routes.c").opt_level(3).warnings(true);
    for flag in pkg_config("--cflags") {
        shim.flag(flag);
    }
    // DPDK has AF_XDP where this library is.
    let xdp = Command::new("pkg-config").args(["--exists", "libxdp"]).status();
    let has_xdp = xdp.is_ok_and(|status| status.success());
    if has_xdp {
        shim.define("NATRIX_XDP", None);
    }
    shim.compile("natrix_dpdk");
    if has_xdp {
        println!("cargo::rustc-link-lib=xdp");
    }
    for flag in pkg_config("--libs") {
        if let Some(name) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib={name}");
        } else if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        }
    }
}

/// What pkg-config says about libdpdk.
fn pkg_config(what: &str) -> Vec<String> {
    let output = Command::new("pkg-config").args([what, "libdpdk"]).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        }
        _ => {
            println!("cargo::error=libdpdk is not installed; apt-get install libdpdk-dev pkg-config");
            Vec::new()
        }
    }
}
