#!/usr/bin/env bash
# Builds the Debian package into target/package, and checks it.
#
#   scripts/package.sh                   build it and run lintian over it
#   scripts/package.sh --test            then also install, upgrade and purge it in a fresh Debian
#   scripts/package.sh --test --built D  the same with D/debug/natrix as it is, quickly
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="/usr/local/lib/natrix-tools/bin:$PATH:/usr/sbin:/sbin"

readonly out=target/package
profile=release built=target/release tested=""
# To compress for size takes a minute of one CPU.
quickly=()
while [ $# -gt 0 ]; do
    case "$1:${2-}" in
    --test:*) tested=yes ;;
    --built:?*)
        profile=dev built=$2/debug quickly=(--fast)
        export CARGO_TARGET_DIR=$2
        shift
        ;;
    *)
        echo "error: package: unknown option $1; see the head of scripts/package.sh" >&2
        exit 1
        ;;
    esac
    shift
done

missing=""
for tool in lintian mmdebstrap dpkg-shlibdeps cargo-deb; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || {
    echo "error: package: missing:$missing; run scripts/setup.sh" >&2
    exit 1
}

[ "$profile" = dev ] || cargo build --locked --profile "$profile" --package natrix --features dpdk
rm -rf "$out"
mkdir -p "$out/completions"
"$built/natrix" manual "$out/man"
"$built/natrix" completions bash >"$out/completions/natrix"
"$built/natrix" completions zsh >"$out/completions/_natrix"
"$built/natrix" completions fish >"$out/completions/natrix.fish"
systemd-analyze security --offline=true --threshold=30 packaging/natrix.service >"$out/security.txt" || {
    tail -n 3 "$out/security.txt"
    echo "error: natrix.service: more than 3.0 exposed; see $out/security.txt" >&2
    exit 1
}

# package VERSION: prints the path of the package.
package() {
    cargo deb --quiet --no-build --locked --profile "$profile" --package natrix --strip "${quickly[@]}" \
        --deb-version "$1" --output "$out/" >&2
    ls "$out/natrix_$1"_*.deb
}
version=$(sed -n 's/^natrix (\(.*\)) .*/\1/p;q' packaging/debian/changelog)
first=$(package "$version")
lintian --fail-on error --suppress-tags bad-distribution-in-changes-file "$first"
ls -l "$first"
[ -n "$tested" ] || exit 0

# In a fresh system without services: install, upgrade, remove, purge.
second=$(package "${version%-*}-2")
system=$(mktemp -d)
trap 'rm -rf "$system"' EXIT
chmod 755 "$system"
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
mmdebstrap --quiet --variant=apt --include=man-db,logrotate "$suite" "$system"
mkdir "$system/packages"
cp "$first" "$second" "$system/packages/"
inside() {
    chroot "$system" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}
step() {
    echo "ok - $*"
}
# The lists of packages with which it was made are not kept in it.
inside apt-get -qq update
inside apt-get -qq -y --no-install-recommends install "/packages/$(basename "$first")" </dev/null >"$out/install.log" 2>&1 || {
    tail "$out/install.log"
    exit 1
}
step "installs with what it depends on"
inside natrix --version
inside getent passwd natrix >/dev/null && inside getent group natrix >/dev/null
[ "$(inside stat -c '%U:%G %a' /etc/natrix)" = "root:natrix 2770" ]
step "has its user, its group and its folder"
[ -e "$system/lib/systemd/system/natrix.service" ] || [ -e "$system/usr/lib/systemd/system/natrix.service" ]
[ ! -e "$system/etc/systemd/system/multi-user.target.wants/natrix.service" ]
step "has its unit, which is not enabled"
inside natrix check --any-machine -c /usr/share/doc/natrix/examples/natrix.toml
inside natrix init --inside 0000:3b:00.0 --outside 0000:3b:00.1 --inside-address 100.64.0.1/24 \
    --outside-address 192.0.2.2/24 --gateway 192.0.2.1 --pool 203.0.113.0/28 >/dev/null
# Root wrote it; the service must be able to read it.
inside setpriv --reuid=natrix --regid=natrix --init-groups natrix check --any-machine -c /etc/natrix/natrix.toml
step "checks its example, and as the service's user what natrix init writes"
inside sh -c 'man -w natrix-show-status >/dev/null && bash -n /usr/share/bash-completion/completions/natrix'
step "has manual pages and completions"
inside install -d -o natrix -g natrix -m 750 /var/log/natrix
inside sh -c 'umask 077 && echo "{}" >/var/log/natrix/control.audit.jsonl && chown natrix: /var/log/natrix/*'
inside logrotate --force /etc/logrotate.d/natrix
[ ! -e "$system/var/log/natrix/control.audit.jsonl" ]
[ "$(inside sh -c 'stat -c "%U:%G %a" /var/log/natrix/*')" = "natrix:natrix 600" ]
[ "$(inside sh -c 'cat /var/log/natrix/control.audit.jsonl-[0-9]*')" = "{}" ]
step "renames the audit log, and keeps its records"
inside apt-get -qq -y install "/packages/$(basename "$second")" </dev/null >"$out/upgrade.log" 2>&1 || {
    tail "$out/upgrade.log"
    exit 1
}
inside dpkg -s natrix | grep -qxF "Version: ${version%-*}-2"
inside natrix check --any-machine -c /etc/natrix/natrix.toml >/dev/null
step "upgrades, and keeps the configuration"
mkdir -p "$system/var/log/natrix/log"
inside dpkg --remove natrix >/dev/null
[ -e "$system/etc/natrix/natrix.toml" ] && [ ! -e "$system/usr/bin/natrix" ]
step "is removed, and keeps the configuration"
inside dpkg --purge natrix >/dev/null 2>&1
[ ! -e "$system/etc/natrix" ] && [ ! -e "$system/var/lib/natrix" ] && [ -d "$system/var/log/natrix/log" ]
inside dpkg -s natrix >/dev/null 2>&1 && exit 1
step "is purged, and keeps the event log"
