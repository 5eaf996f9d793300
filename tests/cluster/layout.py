"""Names of everything the cluster creates: folders, files, links, groups.

Every name follows from the base folder alone, so a later process finds (and removes) what an
earlier one left, and two clusters with different base folders do not meet. Creates nothing.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

BASE_VARIABLE = "HPCPROF_CLUSTER_DIR"
DEFAULT_BASE = "/tmp/hpcprof-cluster"

# in the environment of every process the cluster starts; never in that of a job
MARK_VARIABLE = "HPCPROF_CLUSTER_MARK"

# a base folder holds these and nothing else, so `down` never deletes what it did not make
FOLDERS = ("etc", "run", "log", "spool", "db", "nodes", "nodetmp", "shared")


@dataclass(frozen=True)
class Layout:
    """Paths and names that belong to the cluster in `base`."""

    base: Path

    @classmethod
    def from_environ(cls) -> Layout:
        """The layout in `$HPCPROF_CLUSTER_DIR`, or in the default folder."""
        return cls(Path(os.environ.get(BASE_VARIABLE) or DEFAULT_BASE).resolve())

    @property
    def id(self) -> str:
        """Four hexadecimal digits that tell this base folder from others."""
        return hashlib.sha256(str(self.base).encode()).hexdigest()[:4]

    @property
    def state_file(self) -> Path:
        return self.base / "state.json"

    @property
    def etc(self) -> Path:
        return self.base / "etc"

    @property
    def run(self) -> Path:
        return self.base / "run"

    @property
    def log(self) -> Path:
        return self.base / "log"

    @property
    def spool(self) -> Path:
        return self.base / "spool"

    @property
    def database(self) -> Path:
        return self.base / "db"

    @property
    def shared(self) -> Path:
        """Work folder that host and nodes see alike, mounts made later included."""
        return self.base / "shared"

    @property
    def node_tmp(self) -> Path:
        """One path, another folder behind it on each node."""
        return self.base / "nodetmp"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge" / "sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "mysql.sock"

    @property
    def hosts(self) -> Path:
        return self.etc / "hosts"

    @property
    def bridge(self) -> str:
        return f"hpb{self.id}"

    def veth(self, index: int) -> str:
        """Host end of the link of node `index`."""
        return f"hpv{self.id}n{index}"

    @property
    def cpu_group(self) -> str:
        """Name of the cpu cgroup that holds the groups of all nodes."""
        return f"hpcprof-{self.id}"

    def private_tmp(self, node: str) -> Path:
        """What `node` sees as `node_tmp`."""
        return self.base / "nodes" / node / "tmp"

    def node_script(self, node: str) -> Path:
        return self.etc / f"{node}.sh"


def node_name(index: int) -> str:
    """Host name of node `index`."""
    return f"node{index}"
