#!/usr/bin/env bash
# Fuzzes the HTTP API of a standalone PVC of its own, which is gone afterwards.
#
#   tests/fuzz/standalone.sh [SECONDS]     time for requests made by chance, and 20 s more; default: 40
#
# Nothing of this machine is touched: state, libvirtd and network are private, for networks of VMs are
# made as well. The last line says what the fuzzer counted: `N passed, N failed`.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SECONDS_TO_FUZZ=${1:-40}
BIN=${CARGO_TARGET_DIR:-$TOP/target}/debug
LIBVIRT=$TOP/packaging/install/libvirt.sh
DAEMON=''

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf '  hint: %s\n' "$hint" >&2; done
    exit 1
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0; }
[[ $EUID == 0 ]] || die 'this needs root: it starts a hypervisor' "sudo $0"
[[ -x $BIN/pvcd ]] || die "\`$BIN/pvcd\` is missing" 'cargo build -p pvcd -p pvc'

# A network that the fuzzer asks for has bridges, a packet filter and settings of the kernel, which go
# with the network of these programs. PyPI is out of reach from there.
if [[ ${PVC_FUZZ_NETWORK:-} != own ]]; then
    "$TOP/tests/fuzz/run.sh" install
    PVC_FUZZ_NETWORK=own exec unshare --net "$TOP/tests/fuzz/standalone.sh" "$@"
fi
ip link set lo up

DIR=$(mktemp -d /tmp/pvc-fuzz.XXXXXX)
cleanup() {
    if [[ -n $DAEMON ]]; then
        kill -KILL "$DAEMON" 2>/dev/null || true
        wait "$DAEMON" 2>/dev/null || true # takes the shell's own word about it, too
    fi
    "$LIBVIRT" purge "$DIR/lv" >/dev/null 2>&1 || true
    rm -rf "$DIR"
}
trap cleanup EXIT

# A port that the kernel gives to nobody who names none, by the rule of `pvc_contracts::tcp_port`.
free_port() {
    python3 -c '
import os, socket
for place in range(22000):
    port = 10000 + (16 * os.getpid() + place) % 22000
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
else:
    raise SystemExit("no port is free")
'
}

TOKEN=$(cat /proc/sys/kernel/random/uuid)
PORT=$(free_port)
URL=http://127.0.0.1:$PORT

# The fuzzer defines and starts VMs: a real libvirtd has to refuse what no guest can be made of.
URI=$("$LIBVIRT" start "$DIR/lv")
cat >"$DIR/pvc.conf" <<CONF
standalone:
  state_directory: "$DIR/state"
  libvirt_uri: "$URI"
path:
  system_log_directory: "$DIR/log"
  console_log_directory: "$DIR/console"
api:
  listen:
    address: "127.0.0.1"
    port: $PORT
  authentication:
    enabled: yes
    source: token
  token:
    - description: "the fuzzer"
      token: "$TOKEN"
CONF

"$BIN/pvcd" standalone --config "$DIR/pvc.conf" </dev/null >"$DIR/pvcd.out" 2>&1 &
DAEMON=$!

answers() {
    curl --silent --fail --max-time 2 --header "X-Api-Key: $TOKEN" "$URL/api/v1/node" 2>/dev/null | grep -q '"run"'
}
tries=0
until answers; do
    kill -0 "$DAEMON" 2>/dev/null || { tail -n 20 "$DIR/pvcd.out" >&2; die 'the daemon ended before it served'; }
    ((tries++ < 600)) || { tail -n 20 "$DIR/pvcd.out" >&2; die 'the daemon does not serve after 60 seconds'; }
    sleep 0.1
done

status=0
"$TOP/tests/fuzz/run.sh" "$URL" "$TOKEN" "$SECONDS_TO_FUZZ" 2>&1 | tee "$DIR/fuzz.out" || status=$?
line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$DIR/fuzz.out" | tail -n 1) || true
passed=$(cut -d' ' -f1 <<<"${line:-0 passed, 0 failed}")
failed=$(cut -d' ' -f3 <<<"${line:-0 passed, 0 failed}")
# A fuzzer that fell over has failed, though it counted nothing.
if [[ -z $line || ($status != 0 && $failed == 0) ]]; then failed=$((failed + 1)); fi

# Whatever was sent: the daemon lives, and answers.
if kill -0 "$DAEMON" 2>/dev/null && answers; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo 'the daemon did not survive; it said last:'
    tail -n 20 "$DIR/pvcd.out"
fi
if grep -q panicked "$DIR/pvcd.out" "$DIR"/log/*.log 2>/dev/null; then
    failed=$((failed + 1))
    echo 'the daemon panicked:'
    grep -h -A 3 panicked "$DIR/pvcd.out" "$DIR"/log/*.log | head -n 20
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
[[ $failed == 0 ]]
