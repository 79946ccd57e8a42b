# Natrix. make demo and make test do all their own set-up on a fresh Debian 12 or Ubuntu machine,
# as root.

SHELL := /bin/bash
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin:$(HOME)/.cargo/bin

# What carries the demo's traffic: natrix, or netfilter (the kernel's own NAT, to compare).
DUT ?= natrix
# How Natrix and the core router of the demo know their routes: frr (BGP with BFD), or static.
ROUTING ?= frr
# 1: leave the demo's network running after the programs, until Ctrl-C.
KEEP ?= 0
# Length of `make fuzz` in seconds per target, and of `make soak` in minutes and in seeds of each
# random test. FUZZ_RUNS: inputs of each fuzz target in `make soak`, always the same ones.
FUZZ_SECONDS ?= 300
FUZZ_RUNS ?= 20000
SOAK_MINUTES ?= 30
SOAK_SEEDS ?= 256

.PHONY: help setup build demo test netns routing package conformance bench fuzz soak clean

help: ## what can be made here
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /\t/' | expand -t 12

setup: ## installs what is missing (packages, Rust); needs root only for that
	@scripts/setup.sh

build: setup ## the release binary with DPDK: target/release/natrix
	cargo build --release --locked --package natrix --features dpdk

demo: build ## real programs through Natrix in network namespaces (KEEP=1 leaves it running, DUT=netfilter compares)
	demo/demo.py --dut $(DUT) --routing $(ROUTING) $(if $(filter 1,$(KEEP)),--keep)

test: setup ## format, lints, all tests, tests in network namespaces
	scripts/test.sh

netns: setup ## only the tests in network namespaces
	cargo build --locked --package natrix --features dpdk
	tests/netns/run.py --natrix target/debug/natrix

routing: setup ## tests in network namespaces that load the machine: several NATs side by side, floods, a restart
	cargo build --locked --package natrix --features dpdk
	tests/netns/run.py --natrix target/debug/natrix --quiet

package: setup ## the Debian package in target/package, installed, upgraded and purged in a fresh system
	scripts/package.sh --test

conformance: ## writes docs/conformance.md from docs/conformance.toml and the markers in the tests
	cargo run --locked --package testkit --bin conformance

bench: build ## the engine in memory, from 1 000 to 10 M sessions, as a table (scripts/bench.sh has the knobs)
	scripts/bench.sh

fuzz: setup ## every fuzz target for FUZZ_SECONDS (default 300) seconds
	fuzz/run.sh all $(FUZZ_SECONDS)

soak: build ## FUZZ_RUNS inputs of each fuzz target, random tests with SOAK_SEEDS seeds, then the demo's network under changing load for SOAK_MINUTES
	fuzz/run.sh check $(FUZZ_RUNS)
	cargo clippy --locked --all-targets $(addprefix --package ,packet-io daemon bench lab measure natrix) -- -D warnings
	NATRIX_RUNS=$(SOAK_SEEDS) cargo test --locked --package nat --package testkit --package fuzz-targets
	PROPTEST_CASES=5000 cargo test --locked --package fuzz-targets arbitrary_bytes
	tests/netns/soak.py --natrix target/release/natrix --minutes $(SOAK_MINUTES)
	NATRIX_SCRAPES=5760 tests/netns/run.py --natrix target/release/natrix --only a_day_of_scrapes
	NATRIX_EXAMPLES=40 tests/netns/run.py --natrix target/release/natrix --only generated_requests
	NATRIX_SIGNALS=all tests/netns/run.py --natrix target/release/natrix --only ends_on_each_signal
	NATRIX_KILLS=200 tests/netns/run.py --natrix target/release/natrix --only after_kill_9
	NATRIX_OUTAGE_SECONDS=600 tests/netns/run.py --natrix target/release/natrix --only after_an_outage
	NATRIX_NAT64_MIB=1024 tests/netns/run.py --natrix target/release/natrix --only fetches_by_nat64
	NATRIX_FTP_SECONDS=600 tests/netns/run.py --natrix target/release/natrix --only survives_a_long_transfer

clean: ## removes what was built, and what a killed demo may have left
	demo/demo.py --clean
	cargo clean
