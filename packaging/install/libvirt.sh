#!/usr/bin/env bash
# A libvirtd of PVC's own, for machines where systemd does not run one, and for tests.
#
#   libvirt.sh start DIR    start libvirtd and virtlogd with all their state below DIR (what already
#                           runs is left alone) and print the connection URI
#   libvirt.sh uri DIR      print the connection URI
#   libvirt.sh status DIR   say what runs; status 0 if both daemons do
#   libvirt.sh stop DIR     stop both daemons; guests keep running and the next start finds them
#   libvirt.sh purge DIR    stop the guests too, then remove DIR
#
# libvirt's system directories are compiled in, so the daemons get a mount namespace in which
# /etc/libvirt, /run/libvirt, /var/lib/libvirt, /var/cache/libvirt and /var/log/libvirt/qemu are
# directories below DIR: a libvirt of the machine's own is neither used nor disturbed. Console logs
# (/var/log/libvirt/NAME.log) are ordinary files of the host. Two libvirtds choose the same VNC port
# once in a while: PVC_VNC_PORT, from 5900 to 65000, is where this one begins. With PVC_LIBVIRT_PORT it
# also listens there on 127.0.0.1, for guests that other libvirtds of this machine send; over TLS, with the
# certificates in the directory PVC_LIBVIRT_CERTS, if that is given. PVC_QEMU_CERTS is a directory with certificates
# for guests that are encrypted on their way. QEMU runs as PVC_QEMU_USER, to whom libvirt then gives the guests' files;
# as root if that is not said.
set -euo pipefail

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf '  hint: %s\n' "$hint" >&2; done
    exit 1
}

case ${1:-} in
    start | uri | status | stop | purge) [[ -n ${2:-} ]] || die "\`libvirt.sh $1\` needs a directory" ;;
    '' | -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    *) die "unknown command \`$1\`" 'libvirt.sh --help' ;;
esac

DIR=$(realpath -m "$2")
URI="qemu+unix:///system?socket=$DIR/run/libvirt-sock"
# unix(7): a socket's path has at most 107 bytes.
((${#DIR} <= 80)) || die "the path \`$DIR\` is too long for a socket below it" 'choose one of at most 80 characters'

# --- Processes, by pid and never by name --------------------------------------------------------

# The pid of daemon `$1`, if it is alive and still that program (pids are reused).
running_pid() {
    local pid
    pid=$(cat "$DIR/$1.pid" 2>/dev/null) || return 1
    [[ -n $pid && $(readlink "/proc/$pid/exe" 2>/dev/null) == */"$1"* ]] && printf '%s' "$pid"
}

end_process() { # pid: TERM, then after 10 s KILL
    local tries=0
    kill -TERM "$1" 2>/dev/null || return 0
    while lives "$1"; do
        ((tries++ < 200)) || { kill -KILL "$1" 2>/dev/null || true; }
        sleep 0.05
    done
}

# One that has ended is there, for signals, until its parent has taken notice, and the first process of
# a container may take its time.
lives() { # pid
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    [[ ${stat##*) } != Z* ]]
}

# --- Starting -----------------------------------------------------------------------------------

write_settings() {
    mkdir -p "$DIR"/{etc,run,lib,cache,qemu-log}
    chmod 755 "$DIR" "$DIR"/{run,lib}
    cat >"$DIR/libvirtd.conf" <<CONF
listen_tls = 0
listen_tcp = 0
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
log_outputs = "2:file:$DIR/libvirtd.log"
CONF
    if [[ -n ${PVC_LIBVIRT_PORT:-} ]]; then
        # Each is a host of its own, or libvirt would say that a guest is there already.
        [[ -s $DIR/host-uuid ]] || cat /proc/sys/kernel/random/uuid >"$DIR/host-uuid"
        cat >>"$DIR/libvirtd.conf" <<CONF
listen_addr = "127.0.0.1"
host_uuid = "$(cat "$DIR/host-uuid")"
CONF
        if [[ -n ${PVC_LIBVIRT_CERTS:-} ]]; then
            sed -i 's/^listen_tls = 0/listen_tls = 1/' "$DIR/libvirtd.conf"
            cat >>"$DIR/libvirtd.conf" <<CONF
tls_port = "$PVC_LIBVIRT_PORT"
ca_file = "$PVC_LIBVIRT_CERTS/cacert.pem"
cert_file = "$PVC_LIBVIRT_CERTS/servercert.pem"
key_file = "$PVC_LIBVIRT_CERTS/serverkey.pem"
CONF
        else
            sed -i 's/^listen_tcp = 0/listen_tcp = 1/' "$DIR/libvirtd.conf"
            cat >>"$DIR/libvirtd.conf" <<CONF
tcp_port = "$PVC_LIBVIRT_PORT"
auth_tcp = "none"
CONF
        fi
    fi
    # Console logs belong to whoever reads them; PVC cuts them itself, so virtlogd must not.
    cat >"$DIR/virtlogd.conf" <<CONF
log_outputs = "2:file:$DIR/virtlogd.log"
max_size = 0
CONF
    # A machine that needs this script often is a container: no cgroup to write, no security driver.
    local user=${PVC_QEMU_USER:-root} owns=0
    [[ $user == root ]] || owns=1
    cat >"$DIR/etc/qemu.conf" <<CONF
user = "$user"
group = "$(id -gn "$user")"
dynamic_ownership = $owns
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "logd"
CONF
    # Debian's `tss` cannot get to a directory that is root's alone.
    if [[ $user == root ]]; then printf 'swtpm_user = "root"\nswtpm_group = "root"\n' >>"$DIR/etc/qemu.conf"; fi
    if [[ -n ${PVC_QEMU_CERTS:-} ]]; then echo "migrate_tls_x509_cert_dir = \"$PVC_QEMU_CERTS\"" >>"$DIR/etc/qemu.conf"; fi
    if [[ -n ${PVC_VNC_PORT:-} ]]; then echo "remote_display_port_min = $PVC_VNC_PORT" >>"$DIR/etc/qemu.conf"; fi
}

start_daemon() { # name args…
    local name=$1 program
    shift
    running_pid "$name" >/dev/null && return
    program=$(command -v "$name" || PATH=/usr/sbin:/sbin:$PATH command -v "$name") ||
        die "\`$name\` is not installed" "packaging/install/packages.sh run"
    # shellcheck disable=SC2016
    setsid unshare --mount --propagation slave bash -euc '
        dir=$1; shift
        mount --bind "$dir/etc" /etc/libvirt
        mount --bind "$dir/run" /run/libvirt
        mount --bind "$dir/lib" /var/lib/libvirt
        mount --bind "$dir/cache" /var/cache/libvirt
        mount --bind "$dir/qemu-log" /var/log/libvirt/qemu
        exec "$@"
    ' "$name" "$DIR" "$program" "$@" </dev/null >"$DIR/$name.out" 2>&1 {LOCK}>&- &
    printf '%s' $! >"$DIR/$name.pid"
    disown
}

wait_for() { # name what condition…
    local name=$1 what=$2 tries=0
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$(cat "$DIR/$name.pid")" 2>/dev/null || ((tries++ > 300)); then
            tail -n 5 "$DIR/$name.out" "$DIR/$name.log" 2>/dev/null | sed 's/^/  /' >&2
            die "\`$name\` did not $what" "its messages are in $DIR/$name.log"
        fi
        sleep 0.1
    done
}

start() {
    [[ $EUID == 0 ]] || die 'a libvirtd of our own needs root (it makes a mount namespace)'
    mkdir -p "$DIR"
    exec {LOCK}>"$DIR/lock"
    flock "$LOCK"
    write_settings
    mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt/qemu
    start_daemon virtlogd --config "$DIR/virtlogd.conf" --pid-file "$DIR/run/virtlogd.pid"
    wait_for virtlogd 'open its socket' test -S "$DIR/run/virtlogd-sock"
    start_daemon libvirtd --config "$DIR/libvirtd.conf" --pid-file "$DIR/run/libvirtd.pid" \
        ${PVC_LIBVIRT_PORT:+--listen}
    wait_for libvirtd 'answer' timeout 5 virsh --connect "$URI" --quiet version
    printf '%s\n' "$URI"
}

# --- Stopping -----------------------------------------------------------------------------------

stop() {
    local name pid
    for name in libvirtd virtlogd; do
        if pid=$(running_pid "$name"); then end_process "$pid"; fi
        rm -f "$DIR/$name.pid"
    done
}

# QEMU's own pid files, so that this works without a libvirtd too.
stop_guests() {
    local file pid
    for file in "$DIR"/run/qemu/*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        if [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == *qemu* ]]; then end_process "$pid"; fi
    done
}

status() {
    local name pid all=0
    for name in libvirtd virtlogd; do
        if pid=$(running_pid "$name"); then echo "$name runs, pid $pid"; else echo "$name does not run" && all=1; fi
    done
    return $all
}

case $1 in
    start) start ;;
    uri) printf '%s\n' "$URI" ;;
    status) status ;;
    stop) stop ;;
    purge)
        stop_guests
        stop
        rm -rf "$DIR"
        ;;
esac
