#!/bin/bash
# Installs the Debian/Ubuntu packages the tests use: a Slurm cluster, MPI, a compiler, bindfs, and
# Chromium. Their daemons are neither started nor enabled. Without root or apt it says what is
# missing.
. "$(dirname "$0")/lib.sh"

PACKAGES=(
    slurm-wlm slurm-wlm-basic-plugins slurmdbd munge # the cluster
    mariadb-server-core mariadb-client-core          # accounting; the -core packages have no service
    iproute2 bindfs fuse3                            # nodes' network, slow filesystem
    openmpi-bin libopenmpi-dev                       # MPI of the training
    cmake g++ python3-dev python3-venv               # Horovod is compiled
    libssh-4 libpfm4                                 # nsys's importer needs them
)
SERVICES=(munge slurmd slurmctld slurmdbd)

# find_missing PACKAGE...: sets MISSING to those that are not installed
find_missing() {
    local package state
    MISSING=()
    for package in "$@"; do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || MISSING+=("$package")
    done
}

# install_missing: what find_missing has found; when it cannot, it says why and fails
install_missing() {
    local left='tests that need it will be skipped'
    if ! command -v apt-get >/dev/null; then
        say "no apt here; install by other means: ${MISSING[*]}; $left"
    elif ! is_root; then
        say "not root, so not installed: ${MISSING[*]}; $left"
    else
        say "installing into the system with apt: ${MISSING[*]}"
        apt_install "${MISSING[@]}" && return
        say "apt failed (output above); $left"
    fi
    return 1
}

# keep_services_off: a booted systemd would start at its next boot what was installed just now
keep_services_off() {
    local service
    [ -d /run/systemd/system ] || return 0
    for service in "${SERVICES[@]}"; do
        case " ${MISSING[*]} " in
        *" slurm-wlm "* | *" $service "*) systemctl disable --quiet --now "$service" || true ;;
        esac
    done
}

find_missing "${PACKAGES[@]}"
if [ ${#MISSING[@]} -gt 0 ] && install_missing; then keep_services_off; fi

# by itself, so that a system without it still gets the rest
if command -v google-chrome >/dev/null; then
    : # serves as well
elif grep -qi '^ID=ubuntu' /etc/os-release 2>/dev/null; then
    say "Ubuntu's Chromium is a snap, which the tests cannot use; with Google's Chrome package" \
        "the tests that need a browser run, without it they will be skipped"
elif ! command -v chromium >/dev/null; then
    find_missing chromium
    install_missing || true
fi
