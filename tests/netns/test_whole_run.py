"""What must hold over everything the other tests did; runs last in every setup."""

from kit import *


@test()
@shows("S15", "6888-REQ-11")
def no_inside_source_was_ever_seen_outside(n):
    # Counted by the core router from the first packet on; see run.py.
    out = n.core.run(["nft", "list", "table", "ip", "leaks"], check=True)[1]
    expect("packets 0 bytes 0" in out, f"packets with an inside source left outside: {out}")


@test()
@shows("3022-3", "S1", "S3")
def no_kernel_saw_a_wrong_checksum(n):
    for name, host in n.hosts.items():
        if name == "nat":
            continue
        lines = host.run(["cat", "/proc/net/snmp"], check=True)[1].splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            for key, value in zip(names.split()[1:], values.split()[1:]):
                if key in ("InCsumErrors", "InHdrErrors") and (names.split(":")[0], key) != ("Ip", "InHdrErrors"):
                    expect_equal(int(value), 0, f"{name}: {names.split(':')[0]} {key}")
