#!/bin/sh
# Fuzzes an API from its own description and checks every reply against it.
#
#   tests/fuzz/run.sh URL TOKEN [SECONDS]
#   tests/fuzz/run.sh install       only gets schemathesis, so that a run needs no network but the API's
#
# URL is scheme, host and port (`http://127.0.0.1:7370`); SECONDS is the time to spend on requests made
# by chance, 40 by default, and 10 more on removals and on logins each: the examples and edge cases
# of the document are so many, however long each takes.
# Everything that the API can change, this changes: VMs are made, stopped and removed, nodes flushed,
# faults deleted. Run it against an installation that nobody needs. The last line counts requests:
# `N passed, N failed`; ends with 0 if no reply was a 5xx and all were as described, with 1 otherwise.
#
# schemathesis comes from PyPI into target/fuzz; what it sent and got is in target/fuzz/run.log.
set -eu

case "${1:-}" in
    ''|-h|--help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2 ;;
    install) ;;
    *) url=${1%/} token=${2:?give the API token} seconds=${3:-40} ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
place=$(cd "$here/../.." && pwd)/target/fuzz
wanted='schemathesis==4.32.5'
mkdir -p "$place"
if ! [ -f "$place/venv/$wanted" ]; then
    rm -rf "$place/venv"
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" --quiet --disable-pip-version-check install "$wanted"
    touch "$place/venv/$wanted"
fi
[ "$1" != install ] || exit 0

export PVC_FUZZ_URL="$url" PVC_FUZZ_TOKEN="$token"
cd "$place"
rm -f ./*.json
: > run.log

# fuzz NAME SECONDS OPTION…: fuzzes for SECONDS at most, with VMs that exist when it begins.
fuzz() {
    name=$1 budget=$2
    shift 2
    python3 "$here/prepare.py" "$name" > schemathesis.toml
    venv/bin/schemathesis --no-color --config-file schemathesis.toml run "$url/api/v1/openapi.json" \
        --max-time "$budget" --report json --report-json-path "$name.json" "$@" >> run.log 2>&1 || true
}

# What takes VMs away comes last, or there would be none. Every wrong login is answered later than the
# one before: a few requests at the very end. An event stream does not end, so that each request would
# last until the fuzzer gives it up, with nothing to check: crates/pvc-api/tests/api/stream.rs reads it.
removes='^(DELETE /api/v1/vm/\{vm\}|POST /api/v1/vm/\{vm\}/rename)$'
login='^POST /api/v1/(login|logout)$'
# Far more than what has an end of its own needs on a slow machine.
enough=600
stream='^GET /api/v1/events$'
fuzz coverage "$enough" --phases examples,coverage --exclude-name-regex "$removes|$login|$stream"
fuzz random "$seconds" --phases fuzzing --exclude-name-regex "$removes|$login|$stream"
# Without phases that are named there is one of chained requests, which has no end worth waiting for.
fuzz removes "$enough" --phases examples,coverage --include-name-regex "$removes"
fuzz random-removes 10 --phases fuzzing --include-name-regex "$removes"
fuzz login "$enough" --phases examples,coverage --include-name-regex "$login"
fuzz random-login 10 --phases fuzzing --include-name-regex "$login"

python3 "$here/count.py" 1 coverage.json random.json removes.json random-removes.json login.json random-login.json
