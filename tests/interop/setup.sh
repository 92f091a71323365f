#!/usr/bin/env bash
# Makes the Python environments of the interoperability suite: real kazoo clients, from PyPI.
#
#   setup.sh DIR      makes DIR/kazoo-2.8.0 and DIR/kazoo-current, or does nothing if they are there
#
# 2.8.0 is what PVC has on Debian 11 and 12; "current" is pinned below. Tests call this script
# themselves; it waits for another one that is at work in the same place.
set -euo pipefail

CURRENT=2.11.0

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

[[ ${1:-} == --help || ${1:-} == -h ]] && { usage; exit 0; }
[[ $# -eq 1 ]] || { usage >&2; exit 2; }
mkdir -p "$1"
cd "$1"
exec 9>setup.lock
flock 9

# make NAME VERSION: an environment under its final name is complete.
make() {
    local name=$1 version=$2
    [[ -x $name/bin/python && $(cat "$name/version" 2>/dev/null) == "$version" ]] && return
    rm -rf "$name"
    if ! { python3 -m venv "$name" &&
        "$name/bin/pip" --quiet --disable-pip-version-check install "kazoo==$version"; }; then
        rm -rf "$name"
        printf 'error: cannot install kazoo %s\n' "$version" >&2
        printf '  hint: PyPI must be reachable, and `packaging/install/packages.sh test` must have run\n' >&2
        exit 1
    fi
    printf '%s\n' "$version" >"$name/version"
}

make kazoo-2.8.0 2.8.0
make kazoo-current "$CURRENT"
