"""One sample of the node: processor, memory, network, storage, its ranks and a test read.

Reads counters that the kernel keeps anyway. What cannot be read here is left out of the sample; it
is never 0. Does not write files.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any, Callable, Mapping

from hpcprof.artifacts import node_time
from hpcprof.artifacts.node_records import SAMPLE
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.agent.canary import Canary
from hpcprof.launch.agent.ranks import RankCounters

try:
    import psutil

    HAS_PSUTIL = True
except ImportError:  # the training's environment may not have it
    HAS_PSUTIL = False

# the loopback, and what containers are plugged into: their traffic passes a real interface too
_VIRTUAL = re.compile(r"lo\Z|veth|docker|br-|cali|cni|virbr|ifb|tunl|dummy")
_NFS_TYPES = ("nfs", "nfs4")
_READS = ("READ", "READ_PLUS")  # NFS 4.2 may read by READ_PLUS
_OCTAL = re.compile(r"\\([0-7]{3})")
_FILESYSTEM_SECONDS = 2.0

Counters = Mapping[str, float]


class Sampler:
    """Samples one node. ``node`` is its name in the manifests, ``data_dir`` where the data set is.

    ``problems`` grows by one text for each part that could not be read, once per part.
    """

    def __init__(self, paths: ArtifactPaths, node: str, data_dir: str | None) -> None:
        self.problems: list[str] = []
        self._node = node
        self._data_dir = data_dir
        self._canary = Canary(data_dir)
        self._ranks = RankCounters(paths, node)
        self._failed: set[str] = set()
        self._cpu_times: tuple[float, float] | None = None
        self._parts: dict[str, Callable[[], Counters]] = {
            "tcp": tcp,
            "pressure": pressure,
            "nfs": nfs,
        }
        if HAS_PSUTIL:
            self._parts.update(processor=self._cpu, memory=memory, network=network)
        else:
            self.problems.append("psutil is not installed: no processor, memory, network counters")

    def sample(self) -> dict[str, Any]:
        """One ``sample`` record of artifacts.node_records. Never raises.

        The first one has no ``cpu_busy_frac``: there is nothing yet to take it from.
        """
        record: dict[str, Any] = {"kind": SAMPLE, "monotonic_ns": node_time.monotonic_ns()}
        counters: dict[str, float] = {}
        for name, part in self._parts.items():
            counters.update(self._attempt(name, part))
        record["counters"] = counters
        record["ranks"] = self._attempt("ranks", self._ranks.read)
        counters.update(self._attempt("canary", self._canary.look))  # last: it may wait 50 ms
        self._note("canary", self._canary.problem)
        return record

    def facts(self) -> dict[str, Any]:
        """The object of facts.json. Never raises; takes up to 2 s when the data set hangs."""
        return {
            "node": self._node,
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "kernel": os.uname().release,
            "psutil": psutil.__version__ if HAS_PSUTIL else None,
            "interfaces": self._attempt("interfaces", interfaces) if HAS_PSUTIL else {},
            "data_dir": self._data_dir,
            "data_filesystem": self._attempt("data file system", self._data_filesystem) or None,
        }

    def _attempt(self, name: str, part: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return part()
        except Exception as error:  # /proc differs from kernel to kernel; the agent must go on
            self._note(name, f"{name}: {error!r}")
            return {}

    def _note(self, name: str, problem: str) -> None:
        if problem and name not in self._failed:
            self._failed.add(name)
            self.problems.append(problem)

    def _cpu(self) -> dict[str, float]:
        times = psutil.cpu_times()
        # guest time is part of user time, guest_nice of nice
        parts = {f: v for f, v in times._asdict().items() if not f.startswith("guest")}
        total = sum(parts.values())
        idle = parts["idle"] + parts.get("iowait", 0.0)
        before, self._cpu_times = self._cpu_times, (total, idle)
        if before is None or total <= before[0]:
            return {}
        busy = 1.0 - (idle - before[1]) / (total - before[0])
        return {"cpu_busy_frac": min(1.0, max(0.0, busy))}  # iowait may run backwards: proc(5)

    def _data_filesystem(self) -> dict[str, str]:
        """The mount of the data set; resolving its links must not hang the agent."""
        if not self._data_dir:
            return {}
        resolved: list[str] = []
        data_dir = self._data_dir
        thread = threading.Thread(
            target=lambda: resolved.append(os.path.realpath(data_dir)), daemon=True
        )
        thread.start()
        thread.join(_FILESYSTEM_SECONDS)
        if not resolved:
            raise TimeoutError(f"{data_dir} does not answer")
        return filesystem_of(resolved[0], _read("/proc/self/mounts"))


def memory() -> dict[str, float]:
    """Memory and swap of the node. Needs psutil."""
    now, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        # "used" means other things in other versions of psutil
        "memory_used_bytes": now.total - now.available,
        "memory_total_bytes": now.total,
        "swap_in_bytes": swap.sin,
        "swap_out_bytes": swap.sout,
    }


def network() -> dict[str, float]:
    """Traffic of each interface that is no loopback and has ever had some. Needs psutil."""
    counters: dict[str, float] = {}
    # nowrap would add up for us what our reader can see by itself
    for name, io in psutil.net_io_counters(pernic=True, nowrap=False).items():
        if _VIRTUAL.match(name) or not (io.bytes_sent or io.bytes_recv):
            continue
        counters[f"net_{name}_sent_bytes"] = io.bytes_sent
        counters[f"net_{name}_received_bytes"] = io.bytes_recv
        counters[f"net_{name}_errors"] = io.errin + io.errout
        counters[f"net_{name}_drops"] = io.dropin + io.dropout
    return counters


def interfaces() -> dict[str, dict[str, int]]:
    """Speed (where known) and MTU of the interfaces that are up. Needs psutil."""
    found = {}
    for name, state in psutil.net_if_stats().items():
        if state.isup and not _VIRTUAL.match(name):
            known = {"mtu": state.mtu}
            if state.speed > 0:  # 0 is unknown, as on InfiniBand and in virtual machines
                known["speed_mbit"] = state.speed
            found[name] = known
    return found


def tcp() -> dict[str, float]:
    """Segments that TCP had to send again, all connections of the node, from /proc/net/snmp."""
    return parse_tcp(_read("/proc/net/snmp"))


def parse_tcp(snmp: str) -> dict[str, float]:
    """The counter out of two lines ``Tcp:``, names and values. Raises ValueError without them."""
    names, values = (line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:"))
    return {"tcp_retransmitted_segments": int(values[names.index("RetransSegs")])}


def pressure() -> dict[str, float]:
    """Cumulative µs in which some task waited, by resource; {} where the kernel does not say."""
    counters: dict[str, float] = {}
    for resource in ("cpu", "memory", "io"):
        try:
            text = _read(f"/proc/pressure/{resource}")
        except OSError:  # older than Linux 4.20, or off: then opening it works and reading fails
            continue
        found = re.search(r"^some .*\btotal=(\d+)", text, re.MULTILINE)
        if found:
            counters[f"pressure_{resource}_some_us"] = int(found.group(1))
    return counters


def nfs() -> dict[str, float]:
    """Reads of each NFS mount as the client counts them; {} without such mounts."""
    return parse_mountstats(_read("/proc/self/mountstats"))


def parse_mountstats(text: str) -> dict[str, float]:
    """Counters of the nfs and nfs4 mounts in /proc/self/mountstats.

    The line of an operation, after its name (rpc_print_iostats in net/sunrpc/stats.c): operations,
    transmissions, timeouts, bytes sent, bytes received, then ms in the queue, until the answer,
    and in all. Bytes received are the answers', with their headers. Mounts of one server may share
    their numbers.
    """
    counters: dict[str, float] = {}
    mount = ""
    for line in text.splitlines():
        if line.startswith("device "):
            mount = _nfs_mount(line)
            if mount:  # what is mounted over an earlier one hides it
                for name in _NFS_NAMES:
                    counters.pop(f"nfs_{mount}_{name}", None)
        elif mount:
            operation, _, rest = line.strip().partition(":")
            values = rest.split() if operation in _READS else ()
            if len(values) >= 8:
                for name, index in _NFS_NAMES.items():
                    key = f"nfs_{mount}_{name}"
                    counters[key] = counters.get(key, 0) + int(values[index])
    return counters


_NFS_NAMES = {"read_ops": 0, "read_bytes": 4, "read_rtt_ms": 6, "read_execute_ms": 7}


def _nfs_mount(line: str) -> str:
    """Mount point of a line ``device D mounted on M with fstype T statvers=V``, "" if not NFS."""
    head, _, kind = line.rpartition(" with fstype ")
    if not kind.startswith(tuple(f"{name} " for name in _NFS_TYPES)):
        return ""
    return _unescaped(head.partition(" mounted on ")[2])


def filesystem_of(path: str, mounts: str) -> dict[str, str]:
    """The mount that holds the absolute ``path`` without links: type, mount, source. {} if none.

    ``mounts`` is the content of /proc/self/mounts; of several on one mount point the last counts.
    """
    best: dict[str, str] = {}
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = _unescaped(fields[1])
        holds = path == mount or path.startswith(mount.rstrip("/") + "/")
        if holds and len(mount) >= len(best.get("mount", "")):
            best = {"type": fields[2], "mount": mount, "source": _unescaped(fields[0])}
    return best


def _unescaped(text: str) -> str:
    r"""The kernel writes blank, tab, newline and backslash of a path as ``\040`` and so on."""
    return _OCTAL.sub(lambda found: chr(int(found.group(1), 8)), text)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()
