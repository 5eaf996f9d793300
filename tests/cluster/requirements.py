"""What this machine must have for the cluster, checked before anything is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

COMMANDS = {
    "munged": "munge",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "sacct": "slurm-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


def with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of the environment whose PATH also finds daemons."""
    wanted = ["/usr/local/sbin", "/usr/sbin", "/sbin"]
    path = environ.get("PATH", "/usr/bin:/bin").split(":")
    return {**environ, "PATH": ":".join([*path, *(p for p in wanted if p not in path)])}


def missing() -> str:
    """Why the cluster cannot run here, in one sentence; empty when it can."""
    if os.geteuid() != 0:
        return "the test cluster needs root (namespaces, mounts, a bridge)"
    if not Path("/proc/self/ns/time").exists():
        return "the test cluster needs time namespaces (Linux 5.6 or newer)"
    path = with_sbin(os.environ)["PATH"]
    absent = sorted(c for c in COMMANDS if shutil.which(c, path=path) is None)
    if absent:
        packages = " ".join(sorted({COMMANDS[c] for c in absent}))
        return f"the test cluster needs {', '.join(absent)} (packages: {packages})"
    return ""
