"""Starts and ends processes so that none is ever forgotten, and none of others is ever hit.

A process is known by its pid and its start time, because pids are used again. Does not know
what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError
from .layout import MARK_VARIABLE, Layout
from .state import Resource, record

# the shell waits until its pid is on record; if the starter dies before that, it ends by itself
_GATE = 'read -r go && exec "$@" </dev/null'

# handles of direct children, kept so that ended ones can be reaped
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Stat:
    """The part of /proc/PID/stat that identifies a process."""

    parent: int
    start: int


def stat_of(pid: int) -> Stat | None:
    """Identity of a living process; None when there is none, or only a zombie is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the command name may hold spaces and brackets; the last bracket closes it
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Stat(parent=int(fields[1]), start=int(fields[19]))


def pids() -> Iterator[int]:
    """All pids of this pid namespace, those of the nodes included."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def environ_of(pid: int) -> dict[str, str]:
    """Environment a process was started with; empty when it is gone or not readable."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command_of(pid: int) -> str:
    """Command line of a process, words separated by spaces; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return os.fsdecode(raw.replace(b"\0", b" ")).strip()


def spawn(
    layout: Layout, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> Resource:
    """Start a daemon in its own session, output to `log/NAME.out`, on record before it runs."""
    with open(layout.log / f"{name}.out", "ab") as output:
        child = subprocess.Popen(
            ["sh", "-c", _GATE, "sh", *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**(env or os.environ), MARK_VARIABLE: str(layout.base)},
            start_new_session=True,
        )
    _children[child.pid] = child
    stat = stat_of(child.pid)
    if stat is None:
        raise ClusterError(f"{name} ended before it started; see {layout.log / f'{name}.out'}")
    resource = Resource(kind="process", name=name, pid=child.pid, start=stat.start)
    record(layout, resource)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(b"go\n")
    return resource


def run_helper(layout: Layout, *argv: str) -> str:
    """Run a short command that makes something (`ip`, `mount`) and return what it prints.

    It carries the mark, so that `down` ends it too when its starter was killed in the middle.
    """
    env = {**os.environ, MARK_VARIABLE: str(layout.base)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
    return done.stdout


def is_alive(process: Resource) -> bool:
    """Whether this very process (same pid, same start time) still runs."""
    _reap(process.pid)
    stat = stat_of(process.pid)
    return stat is not None and stat.start == process.start


def children_of(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants_of(pid: int) -> list[int]:
    """All processes below `pid`, `pid` first."""
    found = [pid]
    for parent in found:
        found.extend(children_of(parent))
    return found


def end(processes: Iterable[Resource], timeout: float = 5.0) -> None:
    """SIGKILL these very processes and wait until they are gone.

    Nothing on them deserves a clean exit: their data is deleted next.
    """
    recorded = list(processes)
    deadline = time.monotonic() + timeout
    while living := [process for process in recorded if is_alive(process)]:
        for process in living:
            kill(process.pid, process.start)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def kill(pid: int, start: int) -> None:
    """SIGKILL `pid` if it still is the process that began at `start`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # checked with the handle open: from here on the pid cannot change its owner
        stat = stat_of(pid)
        if stat is not None and stat.start == start:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
    _reap(pid)


def marked(base: Path) -> list[Resource]:
    """Living processes started for the cluster in `base`, by the mark in their environment.

    Finds what the record cannot hold: children of daemons, and helpers whose starter is gone.
    """
    found = []
    for pid in pids():
        if environ_of(pid).get(MARK_VARIABLE) == str(base) and (stat := stat_of(pid)):
            found.append(Resource("process", command_of(pid), pid, stat.start))
    return found


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
