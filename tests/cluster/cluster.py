"""What a test does with a running cluster: submit, wait, look into nodes, inject faults."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from . import clocks, faults, processes
from .clocks import ClockSkew, SkewedClocks
from .errors import ClusterError
from .layout import Layout, node_name
from .network import address
from .requirements import with_sbin
from .state import State

# states in which a job will not change any more, as sacct spells them
FINAL_STATES = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


class Cluster:
    """A cluster that is up. Holds no resources: dropping it takes nothing down."""

    def __init__(self, layout: Layout, found: State) -> None:
        self.layout = layout
        self._state = found

    @property
    def nodes(self) -> list[str]:
        """Host names, `node0` first."""
        return [node_name(index) for index in range(self._state.node_count)]

    @property
    def shared(self) -> Path:
        """Folder that the host and all nodes see alike; the place for run folders."""
        return self.layout.shared

    @property
    def subnet(self) -> str:
        """The nodes' network, as `a.b.c.0/24`."""
        return f"{self._state.subnet}.0/24"

    @property
    def own_env(self) -> dict[str, str]:
        """Variables that make Slurm commands and MPI jobs use this cluster, and no others."""
        return {
            "SLURM_CONF": str(self.layout.slurm_conf),
            "TMPDIR": str(self.layout.node_tmp),
            # one way for messages inside and between nodes, over the nodes' network only
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": self.subnet,
            # ranks outnumber cores here; without this the waiting ones starve the working ones
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "HOROVOD_GLOO_IFACE": "eth0",
        }

    @property
    def env(self) -> dict[str, str]:
        """Whole environment for Slurm commands: the caller's, without a surrounding job's."""
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return {**with_sbin(outer), **self.own_env}

    @property
    def owner_kind(self) -> str:
        """`hand`, or `test` when a test session has started it."""
        return self._state.owner.kind

    def address(self, node: str) -> str:
        """IP address of a node."""
        return address(self._state.subnet, self.nodes.index(node))

    def node_pid(self, node: str) -> int:
        """Host-side pid of a node's first process, whose namespaces are the node's."""
        starter = next(p for p in self._state.of_kind("process") if p.name == node)
        children = processes.children_of(starter.pid)
        if not children:
            raise ClusterError(f"{node} is gone; see {self.layout.log}")
        return children[0]

    # -- commands and jobs

    def run(
        self,
        *argv: str | os.PathLike[str],
        timeout: float = 120,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host (the login node) with the cluster's environment.

        `env` adds to it. With `check`, a failure raises ClusterError that holds the output.
        """
        done = subprocess.run(
            [os.fspath(word) for word in argv],
            env={**self.env, **(env or {})},
            cwd=cwd or self.shared,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise ClusterError(
                f"{' '.join(done.args)} returned {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def run_in_node(
        self, node: str, *argv: str, timeout: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside all namespaces of a node, beside Slurm."""
        enter = ["nsenter", "--target", str(self.node_pid(node)), "--all", "--root", "--wd"]
        return self.run(*enter, *argv, timeout=timeout, check=check)

    def sbatch(
        self,
        script: str | os.PathLike[str],
        *options: str,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Submit a script with further sbatch options; returns the job id.

        `arguments` go to the script, `env` is added to the job's environment, `cwd` is where it
        starts and where its output file lands (default: the shared folder).
        """
        done = self.run("sbatch", "--parsable", *options, script, *arguments, env=env, cwd=cwd)
        return int(done.stdout.split(";")[0])

    def wait(self, job_id: int, timeout: float = 120) -> str:
        """Wait for a job's final state as sacct tells it, e.g. `COMPLETED` or `TIMEOUT`.

        Raises TimeoutError with the last known state; the job is left running then.
        """
        deadline = time.monotonic() + timeout
        while (found := self.job_state(job_id)) not in FINAL_STATES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is {found or 'unknown'} after {timeout:.0f} s")
            time.sleep(0.3)
        return found

    def job_state(self, job_id: int) -> str:
        """State of a job by sacct; empty as long as accounting does not know the job."""
        rows = self._sacct(job_id, ["State"], "--allocations")
        return rows[0]["State"].split()[0] if rows else ""

    def sacct(self, job_id: int, fields: str, *options: str) -> list[dict[str, str]]:
        """Accounting records of a job and its steps, one dict of `fields` (commas) per row.

        Slurm sends starts of jobs to the database every five seconds, and until then the end of
        a short job lacks partition, name and TRES: this waits until they are there.
        """
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            rows = self._sacct(job_id, ["Partition"], "--allocations")
            if rows and rows[0]["Partition"]:
                break
            time.sleep(0.3)
        return self._sacct(job_id, fields.split(","), *options)

    def _sacct(self, job_id: int, names: Sequence[str], *options: str) -> list[dict[str, str]]:
        done = self.run("sacct", "-P", "-n", "-j", str(job_id), "-o", ",".join(names), *options)
        lines = done.stdout.splitlines()
        return [dict(zip(names, line.split("|"), strict=True)) for line in lines]

    def cancel(self, job_id: int, timeout: float = 30) -> None:
        """Cancel one job and wait until its nodes are free again; nothing if it has ended."""
        self.run("scancel", str(job_id), check=False)
        self._wait_until_gone(f"--jobs={job_id}", timeout)

    def cancel_all(self, timeout: float = 30) -> None:
        """Cancel every job, also of other users of this cluster, and wait for free nodes."""
        self.run("scancel", "--user=root", check=False)
        self._wait_until_gone("--user=root", timeout)

    def end_in(self, job_id: int, seconds: int) -> None:
        """Move a running job's time limit to `seconds` from now.

        Slurm rounds `--time` up to minutes but takes this. It looks at limits every 30 s, so the
        job ends `seconds` to `seconds` + 30 from now, in state TIMEOUT.
        """
        self.run("scontrol", "update", f"JobId={job_id}", f"EndTime=now+{seconds}seconds")

    def _wait_until_gone(self, which: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        # squeue fails on a job it has already forgotten
        while self.run("squeue", "--noheader", which, check=False).stdout.strip():
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs still there {timeout:.0f} s after scancel")
            time.sleep(0.2)

    def find_rank_pids(
        self, job_id: int, rank: int, step: int | None = None, command: str = ""
    ) -> list[int]:
        """Host-side pids of one rank of a job; see `faults.find_rank_pids`."""
        return faults.find_rank_pids(job_id, rank, step, command)

    # -- faults: each ends with its `with` block

    def slow_cpu(
        self, node: str = "", pids: Sequence[int] = (), quota: float = 0.25
    ) -> AbstractContextManager[None]:
        """Give all of a node, or these processes together, `quota` of one core."""
        return faults.slow_cpu(self, node, pids, quota)

    def slow_filesystem(
        self, node: str, path: str | os.PathLike[str], mb_per_s: float
    ) -> AbstractContextManager[None]:
        """Let one node read below `path` at no more than `mb_per_s` (10⁶ bytes per second)."""
        return faults.slow_filesystem(self, node, Path(path), mb_per_s)

    def slow_network(
        self, node: str, mbit_per_s: float, *, receive: bool = False
    ) -> AbstractContextManager[None]:
        """Limit what a node sends, with `receive` also what it receives (10⁶ bits per second)."""
        return faults.slow_network(self, node, mbit_per_s, receive=receive)

    def skewed_clocks(self, skews: Mapping[str, ClockSkew]) -> AbstractContextManager[SkewedClocks]:
        """Let hpcprof's clocks on these nodes be wrong in jobs that get `.env` of the result."""
        return clocks.skewed_clocks(self, skews)

    def full_disk(self, path: str | os.PathLike[str], mb: float) -> AbstractContextManager[None]:
        """Put an empty filesystem of `mb` MiB over `path`, seen by the host and all nodes."""
        return faults.full_disk(self, Path(path), mb)

    def kill_rank(self, pid: int) -> None:
        """SIGKILL a process of a node, given by its host-side pid."""
        faults.kill_rank(self, pid)
