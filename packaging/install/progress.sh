# Says how far something long is. To be sourced.
#
#   step N OF TEXT     begins part N of OF
#   crates COMMAND …   runs a cargo command, and says at which crate of how many it is
#   packages LOG APT … runs an apt-get command, and says how far it is; its own words go to the file LOG
#
# On a terminal the last line is written anew, in a log there is a line each PROGRESS_EVERY seconds. The caller
# has `pipefail` set, so that the command's failure is theirs.

PROGRESS_EVERY=${PROGRESS_EVERY:-15}

step() { printf '[%d/%d] %s\n' "$1" "$2" "$3"; }

# Reads lines and hands on what is not about progress. `told LINE` is the rule: it sets NOW to what a line says
# about progress, or fails for any other line. Between lines, which may be minutes apart, the time goes on.
follow() {
    local told=$1 line part= waited begun=$SECONDS last=-$PROGRESS_EVERY every=$PROGRESS_EVERY terminal=
    NOW=
    if [[ -t 2 ]]; then terminal=1 every=1; fi
    while true; do
        IFS= read -r -t "$every" line && waited= || waited=$?
        line=$part$line part=
        if [[ -z $waited ]]; then
            if ! "$told" "$line"; then
                [[ -z $terminal ]] || printf '\r\e[K' >&2
                [[ -z $line ]] || printf '%s\n' "$line" >&2
            fi
        elif ((waited <= 128)); then
            break # the end, not the time
        else
            part=$line # what of a line had come by then
        fi
        [[ -n $NOW ]] && ((SECONDS - last >= every)) || continue
        last=$SECONDS
        if [[ -n $terminal ]]; then
            printf '\r\e[K      %s' "$(cut -c -"$((${COLUMNS:-80} - 7))" <<<"$NOW, $(minutes $((SECONDS - begun)))")" >&2
        else
            printf '      %s, %s\n' "$NOW" "$(minutes $((SECONDS - begun)))" >&2
        fi
    done
    if [[ -n $terminal && -n $NOW ]]; then printf '\r\e[K' >&2; fi
}

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# `   Building [====>     ] 45/380: serde, libc(build)`, from cargo, which counts what it builds as crates.
cargo_told() {
    [[ $1 =~ ^[[:space:]]*Building\ \[[^]]*\]\ ([0-9]+)/([0-9]+)(:\ (.*))?$ ]] || return
    NOW="crate ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}${BASH_REMATCH[4]:+: ${BASH_REMATCH[4]}}"
}

crates() {
    local status=0
    # Both ends of a line of progress are `\r`; what is compiled is in the progress already.
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100 CARGO_TERM_COLOR=never "$@" 2>&1 |
        stdbuf -oL tr '\r' '\n' | stdbuf -oL sed -E 's/\x1b\[[0-9;]*[A-Za-z]//g; /^ +(Compiling|Downloaded|Fresh) /d' |
        follow cargo_told || status=$?
    return "$status"
}

# `pmstatus:libvirt0:45.6:Installing libvirt0`, as `APT::Status-Fd` says it; `dlstatus` while it fetches.
apt_told() {
    [[ $1 =~ ^(dl|pm)status:[^:]*:([0-9]+)[^:]*:(.*)$ ]] || return
    NOW="${BASH_REMATCH[2]} % ${BASH_REMATCH[3]}"
}

packages() {
    local log=$1 status=0
    shift
    "$@" -o APT::Status-Fd=3 3>&1 >"$log" 2>&1 </dev/null | follow apt_told || status=$?
    return "$status"
}
