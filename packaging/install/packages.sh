#!/usr/bin/env bash
# Installs the Debian packages PVC needs and remembers what it changed, so that it can be undone.
#
#   packages.sh build|run|test|package|lab …   install what is missing for these uses (several may be named)
#   packages.sh missing build|…    only say what is missing, change nothing
#   packages.sh undo               remove the files this script added; installed packages stay
#
# Quiet when nothing is missing. No service is started by an installation: PVC starts what it needs
# itself. Everything changed outside dpkg is written down in $PVC_INSTALL_STATE (default
# /var/lib/pvc-install), which `./run --purge` hands to `undo`.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

STATE=${PVC_INSTALL_STATE:-/var/lib/pvc-install}
RECORD=$STATE/changes            # one "<what> <name>" per line
POLICY=/usr/sbin/policy-rc.d     # Debian asks this program before it starts a service
POLICY_SAVED=$POLICY.pvc-saved
SUITE_FILE=/etc/apt/sources.list.d/pvc-backports.sources

BUILD=(pkg-config gcc libc6-dev libvirt-dev)
RUN=(libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils seabios busybox-static iproute2 curl
    fio dnsmasq-base nftables python3)
# `zookeeper` brings no service of its own (that is `zookeeperd`): tests start their own server.
# Without an slf4j binding on its class path a ZooKeeper server logs nothing at all.
# A Ceph of one monitor, one manager and one OSD on the loopback is what volumes in a cluster are tested on.
# `postgresql` for the same reason: the tests make a server of their own. And `pdns-server`, whose own
# service would take port 53, and has no backend to start with.
TEST=(zookeeper default-jre-headless libslf4j-java python3 python3-venv e2fsprogs xfsprogs strace fdisk gdisk lvm2
    ceph-mon ceph-mgr ceph-osd ceph-common qemu-block-extra openipmi ipmitool postgresql iputils-ping
    pdns-server pdns-backend-pgsql debootstrap ovmf swtpm-tools)
# What `cargo xtask package` packs with.
PACKAGE=(dpkg-dev binutils)
# The lab's nodes bring their own packages; this is what makes, boots, connects and unplugs them.
LAB=(mmdebstrap systemd-container iproute2 iputils-ping openipmi ipmitool)

say() { printf '%s\n' "$*"; }
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf '  hint: %s\n' "$hint" >&2; done
    exit 1
}

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

remember() {
    mkdir -p "$STATE"
    grep -qxF "$*" "$RECORD" 2>/dev/null || printf '%s\n' "$*" >>"$RECORD"
}

installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

missing_of() {
    local package
    for package in "$@"; do installed "$package" || printf '%s\n' "$package"; done
}

wanted_by() {
    case $1 in
        build) printf '%s\n' "${BUILD[@]}" ;;
        run) printf '%s\n' "${RUN[@]}" ;;
        test) printf '%s\n' "${TEST[@]}" ;;
        package) printf '%s\n' "${PACKAGE[@]}" ;;
        lab) printf '%s\n' "${LAB[@]}" ;;
        *) die "unknown use \`$1\`" 'the uses are: build, run, test, package, lab' ;;
    esac
}

# --- Services must not start while packages are installed -------------------------------------

# A saved policy from a run that was killed is put back first.
restore_policy() {
    if [[ -e $POLICY_SAVED || -L $POLICY_SAVED ]]; then
        mv -fT "$POLICY_SAVED" "$POLICY"
    elif grep -qs 'written by PVC' "$POLICY"; then
        rm -f "$POLICY"
    fi
}

deny_service_starts() {
    restore_policy
    trap restore_policy EXIT
    if [[ -e $POLICY || -L $POLICY ]]; then mv -T "$POLICY" "$POLICY_SAVED"; fi
    printf '#!/bin/sh\n# written by PVC while it installs packages; removed afterwards\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
}

# --- Backports ----------------------------------------------------------------------------------

# Part of QEMU or libvirt being installed from backports keeps the plain release's packages of the
# same sources out: they ask for exactly their own version of what is already there.
has_backported_parts() {
    dpkg-query -W -f '${db:Status-Status} ${source:Package} ${Version}\n' 2>/dev/null |
        grep -Eq '^installed (qemu|libvirt) .*~bpo[0-9]+\+'
}

codename() { . /etc/os-release && printf '%s' "${VERSION_CODENAME:-}"; }

# The mirror this machine already uses for its release, so that a local mirror is respected.
mirror() {
    apt-get indextargets --format '$(RELEASE) $(SITE)' 'Created-By: Packages' |
        awk -v release="$(codename)" '$1 == release { print $2; exit }'
}

add_backports() {
    local suite site
    suite="$(codename)-backports"
    if ! apt-get indextargets --format '$(RELEASE)' | grep -qx "$suite"; then
        site=$(mirror)
        say "adding the suite $suite in $SUITE_FILE, because parts of QEMU or libvirt were installed from it"
        printf '# Added by PVC; `./run --purge` removes it.\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
            "${site:-http://deb.debian.org/debian}" "$suite" /usr/share/keyrings/debian-archive-keyring.gpg >"$SUITE_FILE"
        remember file "$SUITE_FILE"
    fi
    update_lists
    APT_FROM=(-t "$suite")
}

# --- Installing ---------------------------------------------------------------------------------

# --no-remove: what is installed is the machine's owner's; a conflict is an answer, not a licence.
APT=(apt-get -q -y --no-remove -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 --no-install-recommends)
APT_FROM=()

update_lists() {
    say 'updating the package lists'
    apt-get -q -o DPkg::Lock::Timeout=600 update >"$STATE/apt.log" 2>&1 ||
        say "warning: some package lists could not be updated (see $STATE/apt.log)"
}

can_install() { "${APT[@]}" --simulate "${APT_FROM[@]}" install "$@" >"$STATE/apt.log" 2>&1; }

# Finds the suite the packages can come from: as the machine is set up, after fresh lists, and last
# from backports if that is where the machine's QEMU came from.
choose_suite() {
    can_install "$@" && return
    update_lists
    can_install "$@" && return
    if has_backported_parts; then
        add_backports
        can_install "$@" && return
    fi
    sed 's/^/  apt: /' "$STATE/apt.log" >&2
    die "apt cannot install: $*" 'see its answer above; `apt-get -f install` or other package sources may be needed'
}

install_missing() {
    local -a packages=("$@")
    [[ $EUID == 0 ]] || die "these packages are missing: ${packages[*]}" \
        "run this once as root: ${BASH_SOURCE[0]} ${USES[*]}"
    command -v apt-get >/dev/null || die 'this machine has no apt-get' \
        "PVC installs itself on Debian 12 only; elsewhere install by hand what provides: ${packages[*]}"
    mkdir -p "$STATE"
    exec 9>"$STATE/lock"
    flock 9

    mapfile -t packages < <(missing_of "${packages[@]}") # another run may have been first
    ((${#packages[@]})) || return 0
    choose_suite "${packages[@]}"
    say "installing ${packages[*]} (and what they depend on; log: $STATE/apt.log)"
    local before after package
    before=$(all_installed)
    deny_service_starts
    DEBIAN_FRONTEND=noninteractive packages "$STATE/apt.log" "${APT[@]}" "${APT_FROM[@]}" \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
        install "${packages[@]}" 9>&- || {
        tail -n 20 "$STATE/apt.log" | sed 's/^/  apt: /' >&2
        die "apt failed to install: ${packages[*]}" "its whole answer is in $STATE/apt.log"
    }
    restore_policy
    trap - EXIT
    after=$(all_installed)
    for package in "${packages[@]}"; do remember asked "$package"; done
    while read -r package; do remember package "$package"; done < <(comm -13 <(printf '%s\n' "$before") <(printf '%s\n' "$after"))
}

all_installed() {
    dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' | sed -n 's/^installed //p' | LC_ALL=C sort
}

# --- Cargo --------------------------------------------------------------------------------------

# Debian's own cargo is years too old, and rustup's installer must not be run unasked.
check_cargo() {
    command -v cargo >/dev/null && return
    [[ -x ${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo ]] && return
    die 'there is no `cargo`, the Rust build tool' \
        'Debian 12 packages a Rust that is too old; install rustup from https://rustup.rs:' \
        "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal" \
        'rustup then fetches the version that rust-toolchain.toml names by itself'
}

# --- Undo ---------------------------------------------------------------------------------------

undo() {
    [[ -d $STATE ]] || return 0
    [[ $EUID == 0 ]] || die 'undoing an installation needs root'
    restore_policy
    local what name asked=() brought=0
    while read -r what name; do
        case $what in
            file) if [[ -e $name ]]; then rm -f "$name" && say "removed $name"; fi ;;
            asked) if installed "$name"; then asked+=("$name"); fi ;;
            package) brought=$((brought + 1)) ;;
        esac
    done < <(cat "$RECORD" 2>/dev/null)
    if ((${#asked[@]})); then
        say "$brought installed packages stay; to remove them as well:"
        say "  apt-get remove ${asked[*]} && apt-get autoremove"
    fi
    rm -rf "$STATE"
}

# --- Main ---------------------------------------------------------------------------------------

case ${1:-} in
    '' | -h | --help) usage && exit 0 ;;
    undo) undo && exit 0 ;;
    missing)
        shift
        for use in "$@"; do
            mapfile -t wanted < <(wanted_by "$use")
            missing_of "${wanted[@]}"
        done
        exit 0
        ;;
esac

USES=("$@")
WANTED=()
for use in "${USES[@]}"; do
    list=$(wanted_by "$use")
    mapfile -t -O ${#WANTED[@]} WANTED <<<"$list"
done
mapfile -t MISSING < <(missing_of "${WANTED[@]}")
((${#MISSING[@]} == 0)) || install_missing "${MISSING[@]}"
if [[ " ${USES[*]} " == *' build '* ]]; then check_cargo; fi
