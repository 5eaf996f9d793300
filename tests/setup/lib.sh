# Shared by the set-up scripts: where things go, how they speak, how they record a result.
# shellcheck shell=bash
# To be sourced.

set -eu

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${HPCPROF_CACHE:-$HOME/.cache/hpcprof}
RECORD=$ROOT/.hpcprof-test-env
export DEBIAN_FRONTEND=noninteractive

# say TEXT: one line of progress
say() {
    printf 'setup: %s\n' "$*"
}

# skip TEXT: what is missing; the tests that need it will skip
skip() {
    say "$*; tests that need it will be skipped"
    exit 0
}

is_root() {
    [ "$(id -u)" -eq 0 ]
}

# lock NAME: one set-up at a time works on a part of the cache (until this script ends)
lock() {
    mkdir -p "$CACHE"
    exec 9>"$CACHE/.lock-$1"
    flock 9
}

# record KEY VALUE: what tests/setup/paths.py reads; an empty value removes the key
record() {
    local beside=$RECORD.$$
    { [ ! -f "$RECORD" ] || grep -v "^$1=" "$RECORD" || true; } >"$beside"
    [ -z "$2" ] || printf '%s=%s\n' "$1" "$2" >>"$beside"
    mv "$beside" "$RECORD"
}

# digest FILE... : ten hexadecimal digits that change with the contents
digest() {
    cat "$@" | sha256sum | cut -c1-10
}

# apt_install PACKAGE... : as root; fetches package lists only when apt does not know a package
# or its copy of the list is out of date, and starts no service
apt_install() {
    local guard=/usr/sbin/policy-rc.d made_guard=''
    if [ ! -e "$guard" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$guard"
        chmod 755 "$guard"
        made_guard=yes
    fi
    local code=0
    if ! apt-get install -y -qq --no-install-recommends "$@" >"$APT_LOG" 2>&1; then
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } \
            >"$APT_LOG" 2>&1 || code=$?
    fi
    [ -z "$made_guard" ] || rm -f "$guard"
    [ "$code" -eq 0 ] || tail -n 20 "$APT_LOG" >&2
    rm -f "$APT_LOG"
    return "$code"
}
APT_LOG=${TMPDIR:-/tmp}/hpcprof-apt-$(id -u).log
