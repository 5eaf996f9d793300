"""The record of what exists: `state.json`, written before each thing is created.

Whoever comes next (even after SIGKILL) reads it to take the cluster down. Also holds the lock
that keeps two `up` or `down` from running at once. Creates no resource itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .errors import ClusterBusyError, ClusterError
from .layout import Layout


def boot_id() -> str:
    """Changes with every boot; pids and start times mean nothing across it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Resource:
    """One thing on this machine that the cluster made.

    kind: `process`, `link`, `cgroup` or `mount`; name: daemon, link, group folder or mount point;
    pid and start (clock ticks since boot) identify a process and are 0 for the rest.
    """

    kind: str
    name: str
    pid: int = 0
    start: int = 0


@dataclass(frozen=True)
class Owner:
    """Who brought the cluster up: `hand`, or the test session with this pid and start time."""

    kind: str
    pid: int
    start: int


@dataclass(frozen=True)
class State:
    """What `state.json` says. Phases: `starting`, `up`, `stopping`."""

    phase: str
    owner: Owner
    node_count: int
    subnet: str = ""
    controller_port: int = 0
    database_port: int = 0
    boot_id: str = field(default_factory=boot_id)
    resources: tuple[Resource, ...] = ()

    def of_kind(self, kind: str) -> list[Resource]:
        """Resources of one kind in the order of their making; no process of an earlier boot."""
        if kind == "process" and self.boot_id != boot_id():
            return []
        return [resource for resource in self.resources if resource.kind == kind]


def read(layout: Layout) -> State | None:
    """The recorded state, or None when there is no cluster in this base folder."""
    try:
        raw = json.loads(layout.state_file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ClusterError(f"cannot read {layout.state_file}: {error}") from error
    raw["owner"] = Owner(**raw["owner"])
    raw["resources"] = tuple(Resource(**item) for item in raw["resources"])
    return State(**raw)


def write(layout: Layout, state: State) -> None:
    """Replace the record in one move, so that a kill leaves the old or the new one."""
    beside = layout.state_file.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(asdict(state), indent=1))
    beside.rename(layout.state_file)


def record(layout: Layout, resource: Resource) -> None:
    """Add a resource that is about to be created."""
    with _editing(layout) as state:
        write(layout, replace(state, resources=(*state.resources, resource)))


def forget(layout: Layout, resource: Resource) -> None:
    """Drop a resource that has been removed."""
    with _editing(layout) as state:
        kept = tuple(item for item in state.resources if item != resource)
        write(layout, replace(state, resources=kept))


def set_phase(layout: Layout, phase: str) -> None:
    """Note how far `up` or `down` has come."""
    with _editing(layout) as state:
        write(layout, replace(state, phase=phase))


@contextlib.contextmanager
def _editing(layout: Layout) -> Iterator[State]:
    """The state, with other processes kept from changing it meanwhile (faults do, too)."""
    folder = os.open(layout.base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        state = read(layout)
        if state is None:
            raise ClusterError(f"there is no cluster in {layout.base}")
        yield state
    finally:
        os.close(folder)


@contextlib.contextmanager
def operation_lock(layout: Layout, patience: float = 0.5) -> Iterator[None]:
    """Held during `up` and `down`; raises ClusterBusyError when another one holds it.

    An abstract socket: the kernel frees the name with its process, and it leaves no file. A
    helper that was being started when its `up` was killed holds it until its exec, hence some
    patience (seconds).
    """
    deadline = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        while True:
            try:
                lock.bind(f"\0hpcprof-cluster:{layout.base}")
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterBusyError(
                        f"another `up` or `down` is at work on the cluster in {layout.base}; "
                        "wait for it, or use another folder ($HPCPROF_CLUSTER_DIR)"
                    ) from error
            time.sleep(0.02)
        yield
