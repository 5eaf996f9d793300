#!/bin/bash
# Installs the Debian/Ubuntu packages the tests use: a Slurm cluster, MPI, a compiler, bindfs.
# Their daemons are neither started nor enabled. Without root or apt it says what is missing.
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

missing=()
for package in "${PACKAGES[@]}"; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || skip "no apt here; install by other means: ${missing[*]}"
is_root || skip "not root, so not installed: ${missing[*]}"

say "installing into the system with apt: ${missing[*]}"
apt_install "${missing[@]}" || skip "apt failed (output above)"

# a booted systemd would start them at the next boot
if [ -d /run/systemd/system ]; then
    for service in "${SERVICES[@]}"; do
        case " ${missing[*]} " in
        *" slurm-wlm "* | *" $service "*) systemctl disable --quiet --now "$service" || true ;;
        esac
    done
fi
