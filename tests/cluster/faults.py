"""Faults with a known cause. All but the killed rank are undone at the end of their `with`.

What a fault creates is in `state.json` first, or part of something that is, so a killed test
leaves nothing that `make cluster-down` would not remove.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import mounts, processes, state
from .cgroups import CpuGroups, find_cpu_groups
from .errors import ClusterError, FaultUnavailableError
from .state import Resource

if TYPE_CHECKING:
    from .cluster import Cluster


# how long files that were open at the end of a slow file system may still be read
LAST_READS_S = 3.0


@contextlib.contextmanager
def slow_cpu(
    cluster: Cluster, node: str = "", pids: Sequence[int] = (), quota: float = 0.25
) -> Iterator[None]:
    """Limit a whole node, or the given processes and their descendants, to `quota` cores.

    The processes share the quota; later children inherit it. Raises FaultUnavailableError where
    no cpu cgroup can be made.
    """
    if bool(node) == bool(pids):
        raise ValueError("slow_cpu takes a node or pids, one of them")
    groups = find_cpu_groups()
    top = groups.root / cluster.layout.cpu_group if groups else None
    if groups is None or top is None or not top.is_dir():
        raise FaultUnavailableError("no cpu cgroup can be made on this machine")
    if node:
        with _quota(groups, top / node, quota):
            yield
        return
    everyone = [p for pid in pids for p in processes.descendants_of(pid)]
    # a v2 group with processes may have no groups below it, so this one lies beside the nodes'
    parent = groups.group_of(pids[0]) if groups.version == 1 else top
    with (
        _own_group(groups, parent / f"slow{pids[0]}", everyone) as group,
        _quota(groups, group, quota),
    ):
        yield


@contextlib.contextmanager
def slow_filesystem(cluster: Cluster, node: str, path: Path, mb_per_s: float) -> Iterator[None]:
    """Limit one node's reads below `path`, with bindfs over `path` in that node's mounts only.

    The rate is one budget for all readers of the node. Files are not kept in the page cache
    from one opening to the next, so every epoch is as slow as the first. Programs that hold the
    folder or files of it open from before the fault keep their fast way.
    """
    if shutil.which("bindfs", path=cluster.env["PATH"]) is None or not Path("/dev/fuse").exists():
        raise FaultUnavailableError("slow_filesystem needs bindfs and /dev/fuse")
    # `--root`: the namespace alone would show the machine's root to a test in a chroot
    inside = ["nsenter", "--mount", "--root", "--target", str(cluster.node_pid(node))]
    rate = f"--read-rate={int(mb_per_s * 1e6)}"
    argv = [*inside, "bindfs", "-f", rate, str(path), str(path)]
    daemon = processes.spawn(cluster.layout, f"bindfs-{node}", argv, cluster.env)
    try:
        _wait_for_mount(cluster, node, path, daemon)
        yield
    finally:
        for how in ([], ["--lazy"]):
            # --pid: umount reads /proc/self, which is empty for strangers to the node's processes
            command = [*inside, "--pid", "umount", *how, str(path)]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                break
        if how:
            # somebody is reading: without the daemon that read would fail, and end a training
            time.sleep(LAST_READS_S)
        processes.end([daemon])
        state.forget(cluster.layout, daemon)


@contextlib.contextmanager
def slow_network(
    cluster: Cluster, node: str, mbit_per_s: float, *, receive: bool = False
) -> Iterator[None]:
    """Limit what one node sends to `mbit_per_s` (10⁶ bits per second), and nothing else.

    With `receive`, what it receives is limited to the same rate as well. A token bucket on the
    node's own end of its link (and on the bridge's end): both go with the link, so with the
    cluster. Raises ClusterError when the node's network is slow already.
    """
    if mbit_per_s <= 0:
        raise ValueError(f"a network of {mbit_per_s} Mbit/s sends nothing")
    if shutil.which("tc", path=cluster.env["PATH"]) is None:
        raise FaultUnavailableError("slow_network needs tc (package iproute2)")
    with contextlib.ExitStack() as limits:
        sending = ["nsenter", "--net", "--target", str(cluster.node_pid(node))]
        limits.enter_context(_rate_limit(cluster, sending, "eth0", mbit_per_s))
        if receive:
            veth = cluster.layout.veth(cluster.nodes.index(node))
            limits.enter_context(_rate_limit(cluster, [], veth, mbit_per_s))
        yield


@contextlib.contextmanager
def full_disk(cluster: Cluster, path: Path, mb: float) -> Iterator[None]:
    """Put an empty tmpfs of `mb` MiB over a folder below `cluster.shared`.

    Mounted once on the host, from where it appears on all nodes, so everybody sees the same
    files. What was in the folder is hidden meanwhile; what was written is gone afterwards.
    """
    path = path.resolve()
    if not path.is_relative_to(cluster.shared) or path == cluster.shared:
        raise ValueError(f"full_disk needs a folder below {cluster.shared}, not {path}")
    path.mkdir(parents=True, exist_ok=True)
    resource = mounts.mount_tmpfs(cluster.layout, path, mb)
    try:
        yield
    finally:
        mounts.unmount(path)
        state.forget(cluster.layout, resource)


def kill_rank(cluster: Cluster, pid: int) -> None:
    """SIGKILL a process that runs on one of the nodes; any other is refused."""
    stat = processes.stat_of(pid)
    if stat is None:
        raise ClusterError(f"there is no process {pid}")
    space = _pid_namespace(pid)
    if not any(_pid_namespace(cluster.node_pid(node)) == space for node in cluster.nodes):
        raise ValueError(f"process {pid} does not run on a node of this cluster")
    processes.kill(pid, stat.start)


def find_rank_pids(job_id: int, rank: int, step: int | None = None, command: str = "") -> list[int]:
    """Host-side pids of one rank, oldest first: the wrapper srun started, then what it started.

    A rank is told by SLURM_JOB_ID, SLURM_PROCID and SLURM_STEP_ID in the environment a process
    began with; the batch script and srun itself have no numeric step and are left out. `step`
    picks one of several steps; `command` keeps processes whose command line contains it.
    """
    found = []
    for pid in processes.pids():
        env = processes.environ_of(pid)
        if env.get("SLURM_JOB_ID") != str(job_id) or env.get("SLURM_PROCID") != str(rank):
            continue
        number = env.get("SLURM_STEP_ID", "")
        if not number.isdigit() or (step is not None and int(number) != step):
            continue
        stat = processes.stat_of(pid)
        if stat is not None and command in processes.command_of(pid):
            found.append((stat.start, pid))
    return [pid for _, pid in sorted(found)]


@contextlib.contextmanager
def _rate_limit(
    cluster: Cluster, inside: Sequence[str], link: str, mbit_per_s: float
) -> Iterator[None]:
    """A token bucket for what leaves through `link`, in the namespace that `inside` enters."""
    # netem would do latency and loss too, but many kernels are built without it
    bucket = f"tbf rate {int(mbit_per_s * 1e6)}bit burst 64kbit latency 100ms"
    where = ["dev", link, "root"]
    done = cluster.run(*inside, "tc", "qdisc", "add", *where, *bucket.split(), check=False)
    if "qdisc kind is unknown" in done.stderr:
        raise FaultUnavailableError("slow_network needs the kernel's token bucket filter (sch_tbf)")
    if done.returncode:
        raise ClusterError(f"cannot limit {link}: {done.stderr.strip()}")
    try:
        yield
    finally:
        # gone already when the node is
        cluster.run(*inside, "tc", "qdisc", "del", *where, check=False)


@contextlib.contextmanager
def _quota(groups: CpuGroups, group: Path, cores: float) -> Iterator[None]:
    groups.set_quota(group, cores)
    try:
        yield
    finally:
        if group.is_dir():
            groups.set_quota(group, None)


@contextlib.contextmanager
def _own_group(groups: CpuGroups, group: Path, pids: Sequence[int]) -> Iterator[Path]:
    """A group with these processes in it; at the end they go back to where each came from."""
    origins = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            origins[pid] = groups.group_of(pid)
    home = next(iter(origins.values()), groups.root)
    groups.create(group)
    try:
        groups.add(group, pids)
        yield group
    finally:
        for pid in groups.members(group):
            groups.add(origins.get(pid, home), [pid])
        groups.remove(group)


def _pid_namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def _wait_for_mount(cluster: Cluster, node: str, path: Path, daemon: Resource) -> None:
    table = Path(f"/proc/{cluster.node_pid(node)}/mountinfo")
    deadline = time.monotonic() + 10
    while not any(
        line.split()[4] == str(path) and " - fuse" in line
        for line in table.read_text().splitlines()
    ):
        if not processes.is_alive(daemon) or time.monotonic() > deadline:
            log = cluster.layout.log / f"{daemon.name}.out"
            raise ClusterError(f"bindfs did not mount {path}: {log.read_text()[-300:]}")
        time.sleep(0.02)
