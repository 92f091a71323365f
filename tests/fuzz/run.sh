#!/bin/sh
# Fuzzes an API from its own description and checks every reply against it.
#
#   tests/fuzz/run.sh URL TOKEN [SECONDS]
#
# URL is scheme, host and port (`http://127.0.0.1:7370`); SECONDS is the time to spend, 60 by default.
# Everything that the API can change, this changes: VMs are made, stopped and removed, nodes flushed,
# faults deleted. Run it against an installation that nobody needs. The last line counts requests:
# `N passed, N failed`; ends with 0 if no reply was a 5xx and all were as described, with 1 otherwise.
#
# schemathesis comes from PyPI into target/fuzz; what it sent and got is in target/fuzz/run.log.
set -eu

case "${1:-}" in
    ''|-h|--help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2 ;;
esac
url=${1%/} token=${2:?give the API token} seconds=${3:-60}

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

export PVC_FUZZ_URL="$url" PVC_FUZZ_TOKEN="$token"
python3 "$here/prepare.py" > "$place/schemathesis.toml"
cd "$place"
rm -rf report.json login.json

# Streams do not end, and every wrong login is answered later than the one before: those are asked
# apart, or by tests of their own.
fuzz() {
    report=$1 budget=$2
    shift 2
    "$place/venv/bin/schemathesis" --no-color --config-file "$place/schemathesis.toml" run \
        "$url/api/v1/openapi.json" --max-time "$budget" --report json --report-json-path "$report" "$@" \
        >> "$place/run.log" 2>&1 || true
}
: > "$place/run.log"
fuzz report.json "$seconds" --exclude-path /api/v1/events --exclude-path /api/v1/login
fuzz login.json 10 --include-path /api/v1/login --include-path /api/v1/logout

python3 "$here/count.py" report.json login.json
