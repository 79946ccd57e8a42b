#!/usr/bin/env bash
# Installs what building, testing and demonstrating Natrix needs on Debian 12 or later and on
# Ubuntu. Quick when all is there. Starts no service, keeps none for the next boot that was not
# there before, and gives back what it had to change while installing.
#
#   scripts/setup.sh          install what is missing
#   scripts/setup.sh --check  only say what is missing; exit status 1 when something is
set -euo pipefail

readonly rust_needed="1.90"
readonly policy_file=/usr/sbin/policy-rc.d
readonly policy_mark="# written by the set-up of Natrix while it installs packages"

fail() {
    echo "error: $*" >&2
    exit 1
}

# What has to be found on the path, and the Debian package that brings it.
readonly commands="
cc:build-essential
make:make
pkg-config:pkg-config
python3:python3
ip:iproute2
ethtool:ethtool
nft:nftables
conntrack:conntrack
ping:iputils-ping
tracepath:iputils-tracepath
traceroute:traceroute
curl:curl
nginx:nginx-light
iperf3:iperf3
dnsmasq:dnsmasq-base
dig:bind9-dnsutils
turnserver:coturn
stun:stun-client
tshark:tshark
nfcapd:nfdump
nfacctd:pmacct
ipfixDump:libfixbuf-tools
rsyslogd:rsyslog
natpmpc:natpmpc
go:golang-go
pptpd:pptpd
unbound:unbound
tayga:tayga
vtysh:frr
birdc:bird2
pptp:pptp-linux
dpdk-testpmd:dpdk-dev
shellcheck:shellcheck
promtool:prometheus
chromium:chromium
node:nodejs
npm:npm
cwebp:webp
slowhttptest:slowhttptest
openssl:openssl
snmpd:snmpd
journalctl:systemd
snmpwalk:snmp
snmptrapd:snmptrapd
yanglint:libyang-tools
lintian:lintian
mmdebstrap:mmdebstrap
lftp:lftp
tnftp:tnftp
sipp:sip-tester
kamailio:kamailio
baresip:baresip-core
in.tftpd:tftpd-hpa
tftp:tftp-hpa
ffmpeg:ffmpeg
"
readonly units="nginx.service coturn.service nfdump.service rsyslog.service
    nfacctd.service pmacctd.service sfacctd.service uacctd.service
    prometheus.service prometheus-node-exporter.service pptpd.service
    unbound.service tayga.service frr.service bird.service
    kamailio.service tftpd-hpa.service
    snmpd.service snmptrapd.service snmptrapd.socket"
# Programs for tests that the system's packages do not bring, or not together with the others.
readonly tools=/usr/local/lib/natrix-tools
# Debian allows one FTP server at a time, so their packages are unpacked and not installed.
readonly ftp_servers="vsftpd proftpd-core pure-ftpd"
# Would run as a service.
readonly upnp_server=miniupnpd-nftables
clients=$(cd "$(dirname "$0")/../tests/netns/clients" && pwd)
readonly clients
readonly duckdb_version="2.0.0" chdb_version="4.4.0" schemathesis_version="4.32.5"
readonly playwright_version="1.65.1" axe_version="4.14.1"
readonly cargo_deb_version="3.8.0"
# Debian's compiler for building web browsers, and all that comes with it.
readonly web_compiler=rustc-web
readonly web_packages="rustc-web cargo-web rustfmt-web rust-web-clippy"

# Servers live in sbin, which is not on everybody's path.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin"

missing_packages() {
    local entry
    for entry in $commands; do
        command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
    done
    /usr/bin/python3 -c 'import libtorrent' 2>/dev/null || echo python3-libtorrent
    /usr/bin/python3 -c 'import gi; gi.require_version("GstRtspServer", "1.0")' 2>/dev/null ||
        printf '%s\n' python3-gi gir1.2-gst-rtsp-server-1.0
    gst-inspect-1.0 rtpL16pay >/dev/null 2>&1 ||
        printf '%s\n' gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good
    pkg-config --exists libdpdk 2>/dev/null || echo libdpdk-dev
    # cargo fetches over TLS.
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    python3 -c "import ensurepip" 2>/dev/null || echo python3-venv
}

# Gives back the service policy as it was; also after an installation that was killed.
restore_policy() {
    if [ -e "$policy_file" ] && grep -qxF "$policy_mark" "$policy_file"; then
        rm -f "$policy_file"
    fi
    if [ -e "$policy_file.natrix-saved" ]; then
        mv -f "$policy_file.natrix-saved" "$policy_file"
    fi
}

# Package lists are often absent in fresh images, and stale in old ones; read once a run.
lists_are_fresh=""
refresh_lists() {
    [ -z "$lists_are_fresh" ] || return 0
    apt-get -qq update || fail "set-up: apt-get update failed; see above"
    lists_are_fresh=1
}

install_packages() {
    [ "$(id -u)" -eq 0 ] || fail "set-up: needs root to install: $*; run again as root"
    command -v apt-get >/dev/null || fail "set-up: no apt-get here; install by hand: $*"

    # Units that are here before stay as they are; those that come along are not for the next boot.
    local unit known=""
    for unit in $units; do
        [ ! -e "/lib/systemd/system/$unit" ] || known="$known $unit"
    done

    trap restore_policy EXIT
    trap 'exit 130' INT TERM
    restore_policy
    [ ! -e "$policy_file" ] || mv "$policy_file" "$policy_file.natrix-saved"
    printf '#!/bin/sh\n%s\nexit 101\n' "$policy_mark" >"$policy_file"
    chmod 755 "$policy_file"

    echo "set-up: installing $*"
    refresh_lists
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" </dev/null >/dev/null ||
        fail "set-up: apt-get install failed; see above"
    restore_policy
    trap - EXIT INT TERM

    # Where there is no systemd (a container, say) nothing is started at boot either.
    if command -v systemctl >/dev/null; then
        for unit in $units; do
            case " $known " in
            *" $unit "*) ;;
            *) [ ! -e "/lib/systemd/system/$unit" ] || systemctl --quiet disable "$unit" 2>/dev/null || true ;;
            esac
        done
    fi
}

# Installs the libraries of package $1 and unpacks the package itself to folder $2, for packages
# that cannot be installed beside others.
unpack() {
    local folder libraries
    refresh_lists
    libraries=$(LC_ALL=C apt-cache depends "$1" | sed -n 's/^ *|*Depends: \(lib[^<]*\)$/\1/p' | tr '\n' ' ')
    # shellcheck disable=SC2086 # a list of package names
    install_packages $libraries
    folder=$(mktemp -d)
    chmod 755 "$folder"
    mkdir -p "$tools/bin"
    (cd "$folder" && apt-get -qq download "$1" && dpkg -x "$1"_*.deb "$2") ||
        fail "set-up: $1 cannot be unpacked; see above"
    rm -rf "$folder"
}

# A system cannot have two system loggers either.
unpack_syslog_ng() {
    unpack syslog-ng-core "$tools/syslog-ng"
    cat >"$tools/bin/syslog-ng" <<END
#!/bin/sh
libraries=$tools/syslog-ng/usr/lib/syslog-ng
export LD_LIBRARY_PATH="\$libraries"
exec $tools/syslog-ng/usr/sbin/syslog-ng --module-path="\$(echo "\$libraries"/[0-9]*)" "\$@"
END
    chmod 755 "$tools/bin/syslog-ng"
}

install_python_tools() {
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" --quiet install "duckdb==$duckdb_version" "chdb==$chdb_version" \
        "schemathesis==$schemathesis_version" ||
        fail "set-up: duckdb, chdb and schemathesis cannot be installed from PyPI; see above"
}

# What drives Chromium, and what judges a page's accessibility.
install_browser_tools() {
    mkdir -p "$tools/node"
    npm --silent --prefix "$tools/node" install --no-audit --no-fund \
        "playwright-core@$playwright_version" "axe-core@$axe_version" >/dev/null ||
        fail "set-up: playwright-core and axe-core cannot be installed from npm; see above"
}

browser_tools_are_there() {
    grep -qs "\"version\": \"$playwright_version\"" "$tools/node/node_modules/playwright-core/package.json" &&
        grep -qs "\"version\": \"$axe_version\"" "$tools/node/node_modules/axe-core/package.json"
}

# Clients of port control for the tests in network namespaces: crab_nat, and Tailscale's.
client_sources() {
    cat "$clients"/*/Cargo.lock "$clients"/*/src/*.rs "$clients"/*/go.sum "$clients"/*/main.go | sha256sum
}

clients_are_there() {
    [ "$(client_sources)" = "$(cat "$tools/bin/clients.sum" 2>/dev/null)" ]
}

# The Go to build with. One before 1.21 cannot fetch a newer one by itself.
go_program() {
    local module root wanted
    if at_least "$(go env GOVERSION | sed 's/^go//')" 1.21; then
        echo go
        return
    fi
    wanted=$(sed -n 's/^go //p' "$clients/tailscale/go.mod")
    module="golang.org/toolchain@v0.0.1-go$wanted.linux-$(go env GOARCH)"
    go mod download "$module"
    root="$(go env GOMODCACHE)/$module"
    chmod +x "$root"/bin/* "$root"/pkg/tool/*/*
    echo "$root/bin/go"
}

install_clients() {
    local build go
    echo "set-up: building clients of port control"
    build=$(mktemp -d)
    mkdir -p "$tools/bin"
    if ! CARGO_TARGET_DIR=$build cargo build --quiet --release --locked --manifest-path "$clients/crab_nat/Cargo.toml"; then
        fail "set-up: the client with crab_nat cannot be built; see above"
    fi
    cp "$build/release/crab-nat-client" "$tools/bin/"
    go=$(go_program) || fail "set-up: no Go that is new enough can be fetched; see above"
    (cd "$clients/tailscale" && "$go" build -o "$tools/bin/tailscale-client" .) ||
        fail "set-up: Tailscale's client cannot be built; see above"
    rm -rf "$build"
    client_sources >"$tools/bin/clients.sum"
}

# What makes the Debian package. It works for seconds, so it is built for quick building.
install_cargo_deb() {
    echo "set-up: building cargo-deb"
    CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --root "$tools" "cargo-deb@$cargo_deb_version" ||
        fail "set-up: cargo-deb cannot be built; see above"
}

cargo_deb_is_there() {
    "$tools/bin/cargo-deb" --version 2>/dev/null | grep -qF "$cargo_deb_version"
}

missing_tools() {
    local server
    cargo_deb_is_there || echo cargo-deb
    clients_are_there || echo crab-nat-client tailscale-client
    [ -d "$tools/$upnp_server" ] || echo "$upnp_server"
    browser_tools_are_there || echo playwright-core axe-core
    [ -x "$tools/bin/syslog-ng" ] || echo syslog-ng
    for server in $ftp_servers; do
        [ -d "$tools/$server" ] || echo "$server"
    done
    "$tools/python/bin/python" -c "import duckdb, chdb, schemathesis" 2>/dev/null || echo duckdb chdb schemathesis
}

rust_version() {
    rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\).*/\1/p'
}

# True when version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

rust_is_there() {
    local version
    version=$(rust_version)
    [ -n "$version" ] && at_least "$version" "$rust_needed" && command -v cargo >/dev/null
}

# The version of package $1 that apt would install, as far as "1.96"; empty where there is none.
candidate_version() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*\.[0-9]*\).*/\1/p'
}

install_rust() {
    # `rustc` of Debian is too old up to Debian 13. From Debian 13 and Ubuntu 24.04 on the package
    # of rustup brings a current compiler. Debian 12 has none; there the compiler that Debian keeps
    # current to build web browsers is new enough. apt takes away an older `rustc` or `cargo` for
    # it: they cannot be there together.
    if ! command -v rustup >/dev/null && command -v apt-get >/dev/null; then
        [ "$(id -u)" -ne 0 ] || refresh_lists
        if [ -n "$(candidate_version rustup)" ]; then
            install_packages rustup
        elif at_least "$(candidate_version "$web_compiler")" "$rust_needed"; then
            # shellcheck disable=SC2086 # a list of package names
            install_packages $web_packages
        fi
        hash -r
    fi
    if command -v rustup >/dev/null; then
        rustup toolchain install stable --profile minimal --component rustfmt --component clippy
        rustup default stable
        hash -r
    fi
    rust_is_there || fail "rust: Natrix needs cargo and rustc $rust_needed or later (seen: $(rustc --version 2>/dev/null || echo none)); install Rust with rustup (https://rustup.rs) and run this again"
}

components_are_there() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

missing=$(missing_packages | sort -u | tr '\n' ' ')

if [ "${1:-}" = "--check" ]; then
    rust_is_there || missing="$missing rust>=$rust_needed"
    missing="$missing $(missing_tools | tr '\n' ' ')"
    [ -n "${missing// /}" ] || exit 0
    echo "missing: $missing"
    exit 1
fi

if [ -n "${missing// /}" ]; then
    # shellcheck disable=SC2086 # a list of package names
    install_packages $missing
    hash -r
    missing=$(missing_packages | sort -u | tr '\n' ' ')
    [ -z "${missing// /}" ] || fail "set-up: still missing after installing: $missing; install by hand"
fi
[ -x "$tools/bin/syslog-ng" ] || unpack_syslog_ng
for server in $ftp_servers $upnp_server; do
    [ -d "$tools/$server" ] || unpack "$server" "$tools/$server"
done
"$tools/python/bin/python" -c "import duckdb, chdb, schemathesis" 2>/dev/null || install_python_tools
browser_tools_are_there || install_browser_tools
rust_is_there || install_rust
if ! components_are_there; then
    if command -v rustup >/dev/null; then
        rustup component add rustfmt clippy
    elif [ "$(id -u)" -eq 0 ] && dpkg -s "$web_compiler" >/dev/null 2>&1; then
        # shellcheck disable=SC2086 # a list of package names
        install_packages $web_packages
    fi
fi
clients_are_there || install_clients
cargo_deb_is_there || install_cargo_deb
