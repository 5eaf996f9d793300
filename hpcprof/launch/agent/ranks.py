"""Counters of the ranks that run on this node, from /proc. Knows nothing of the node as a whole.

Who runs here is read from the manifests: while a rank runs, its manifest names only the launcher
(``launcher_pid``); the application and what it starts are found below it. The launcher itself and
nsys are left out: what they read and write is not the training's.

A child that ended and was waited for goes on counting in its parent (read and write counters and
processor time are handed over by the kernel), so sums over the tree do not fall at its end.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from hpcprof.artifacts import node_time, rank_env
from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.launch.attempt import MARK_VARIABLE

# listing the run folder and its manifests asks the shared file system; many nodes do it at once
_LOOK_EVERY_NS = 5_000_000_000
_MANIFESTS_PER_LOOK = 256
# finding the tree reads the stat of every process of the node: some 10 ms with a thousand of them
_TREE_EVERY_NS = 10_000_000_000
_START_EVERY_NS = 2_000_000_000  # while a rank has not started its application
_NSYS_NAMES = ("nsys", "nvlog", "Qdstrm")
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# /proc/PID/io: its names, and ours
_IO_NAMES = {
    "rchar": "rchar_bytes",
    "wchar": "wchar_bytes",
    "syscr": "syscr",
    "syscw": "syscw",
    "read_bytes": "read_bytes",
    "write_bytes": "write_bytes",
}


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says; ``cpu_ticks`` includes children that were waited for."""

    name: str
    parent: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int


class _Rank(NamedTuple):
    launcher_pid: int
    launcher_ticks: int  # a reused process id has another start


class RankCounters:
    """The ranks of one node. ``node`` is the name that the manifests give it."""

    def __init__(self, paths: ArtifactPaths, node: str) -> None:
        self._paths = paths
        self._node = node
        self._seen: set[int] = set()  # ranks whose manifest need not be read again
        self._world_size: int | None = None
        self._ranks: dict[int, _Rank] = {}
        self._members: dict[int, dict[int, int]] = {}  # rank → {pid: start_ticks}
        self._next_look_ns = 0
        self._next_tree_ns = 0

    def read(self) -> dict[str, dict[str, int]]:
        """Counters of artifacts.node_records.RANK_COUNTERS by rank ("3": {...}).

        A rank that has no process here (not started, or ended) is not in it. Where /proc/PID/io
        of one process may not be read, the rank has none of the read and write counters: a sum
        over some of the processes would look like a rank that reads little.
        """
        now = node_time.monotonic_ns()
        if now >= self._next_look_ns:
            self._next_look_ns = now + _LOOK_EVERY_NS
            if self._look_for_ranks():
                self._next_tree_ns = now
        if self._ranks and now >= self._next_tree_ns:
            self._find_members()
            complete = all(self._members.get(rank) for rank in self._ranks)
            self._next_tree_ns = now + (_TREE_EVERY_NS if complete else _START_EVERY_NS)
        found = {}
        for rank, members in self._members.items():
            counters = tree_counters(members)
            if counters:
                found[str(rank)] = counters
        return found

    def _look_for_ranks(self) -> bool:
        """Learn of ranks that were not known; True when one of them runs here."""
        if self._world_size is not None and len(self._seen) >= self._world_size:
            return False
        unknown = [rank for rank in self._paths.rank_ids() if rank not in self._seen]
        found = False
        for rank in unknown[:_MANIFESTS_PER_LOOK]:
            try:
                record = read_json(self._paths.manifest(rank), f"manifest of rank {rank}")
            except InputError:
                continue  # the rank folder is made before its manifest: next time
            self._seen.add(rank)
            if isinstance(record.get("world_size"), int):
                self._world_size = record["world_size"]
            found = self._note(rank, record) or found
        return found

    def _note(self, rank: int, record: dict[str, Any]) -> bool:
        pid = record.get("launcher_pid")
        if record.get("node") != self._node or record.get("ended") or not isinstance(pid, int):
            return False
        stat = read_stat(pid)
        if stat is None or not _is_ours(pid):
            return False
        self._ranks[rank] = _Rank(pid, stat.start_ticks)
        return True

    def _find_members(self) -> None:
        table = process_table()
        children: dict[int, list[int]] = {}
        for pid, stat in table.items():
            children.setdefault(stat.parent, []).append(pid)
        for rank, root in list(self._ranks.items()):
            launcher = table.get(root.launcher_pid)
            if launcher is None or launcher.start_ticks != root.launcher_ticks:
                del self._ranks[rank]
                self._members.pop(rank, None)
                continue
            below = descendants(root.launcher_pid, children)
            pids = {pid for pid in below if not _is_nsys(table[pid])}
            if not pids and below:
                # some versions start the application from a daemon, which is not below us
                folder = str(self._paths.rank_folder(rank).absolute())
                strays = [pid for pid in table if pid not in below and _is_application(pid, folder)]
                pids = {p for stray in strays for p in (stray, *descendants(stray, children))}
            self._members[rank] = {pid: table[pid].start_ticks for pid in pids}


def tree_counters(members: dict[int, int]) -> dict[str, int]:
    """Sums over the processes {pid: start_ticks} that are still there; {} when none is."""
    stats = {}
    for pid, start_ticks in members.items():
        stat = read_stat(pid)
        if stat is not None and stat.start_ticks == start_ticks:
            stats[pid] = stat
    if not stats:
        return {}
    counters = {
        "rss_bytes": sum(stat.rss_pages for stat in stats.values()) * _PAGE_BYTES,
        "cpu_ns": sum(stat.cpu_ticks for stat in stats.values()) * _NS_PER_TICK,
        "threads": sum(stat.threads for stat in stats.values()),
    }
    try:
        for pid in stats:
            for name, value in read_io(pid).items():
                counters[name] = counters.get(name, 0) + value
    except (PermissionError, ValueError):
        for name in _IO_NAMES.values():
            counters.pop(name, None)
    return counters


def read_io(pid: int) -> dict[str, int]:
    """Counters of /proc/PID/io under our names, {} when the process is gone.

    Raises PermissionError when the process may not be looked at.
    """
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as stream:
            lines = stream.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (line.partition(": ") for line in lines)
    return {_IO_NAMES[name]: int(value) for name, _, value in pairs if name in _IO_NAMES}


def read_stat(pid: int) -> ProcessStat | None:
    """/proc/PID/stat, None when the process is gone. Fields as numbered in proc(5)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            head, _, tail = stream.read().rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    if len(fields) < 22:
        return None
    return ProcessStat(
        name=head.partition("(")[2],
        parent=int(fields[1]),
        cpu_ticks=sum(int(field) for field in fields[11:15]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def process_table() -> dict[int, ProcessStat]:
    """Every process of the node that can be seen."""
    table = {}
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdigit() else None
        if stat is not None:
            table[int(name)] = stat
    return table


def descendants(root: int, children: dict[int, list[int]]) -> set[int]:
    """Everything below ``root``, without it."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:  # the table was not read at one moment: parents may form a ring
                found.add(pid)
                waiting.append(pid)
    found.discard(root)
    return found


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _is_nsys(stat: ProcessStat) -> bool:
    return stat.name.startswith(_NSYS_NAMES)


def _is_application(pid: int, folder: str) -> bool:
    """Whether the process was started as the application of the rank with this folder.

    nsys and the shim have the rank folder too, and beside it the mark of their attempt.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's
    mark = f"{MARK_VARIABLE}=".encode()
    return f"{rank_env.RANK_FOLDER}={folder}".encode() in entries and not any(
        entry.startswith(mark) for entry in entries
    )
