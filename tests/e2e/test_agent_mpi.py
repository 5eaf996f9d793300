"""The node agent over real MPI: two or three tasks of mpirun on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import agent_files
from tests.unit import agents
from tests.unit.agents import Agents

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py"),
]


@contextmanager
def mpi_agents(
    run_dir: Path, tasks: int, *options: str, clocks: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """mpirun with an agent per task; killed at the end if it still runs."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "run.json").write_text("{}")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for task in range(tasks):
        command += [":"] if task else []
        command += ["-n", "1", "-x", f"SLURMD_NODENAME=node{task}", *agents.argv(run_dir, *options)]
    process = subprocess.Popen(
        command, env=agents.environ(clocks), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def bursts(paths: ArtifactPaths, task: int) -> int:
    """Number of the latest burst with exchanges, -1 before the first."""
    found = agents.of_kind(paths.node_clock(f"node{task}"), "exchange")
    return max((record["burst"] for record in found), default=-1)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to ask how it ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def agent_pid(paths: ArtifactPaths, task: int) -> int:
    """Process that writes the records of a node."""
    return int(agents.of_kind(paths.node_clock(f"node{task}"), "agent")[0]["pid"])


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def test_three_tasks_bracket_their_true_clock_offsets_over_mpi(tmp_path: Path):
    rates = {"node0": 0, "node1": 30_000, "node2": -50_000}
    clocks = agents.write_clocks(tmp_path / "clocks.json", rates)
    paths = ArtifactPaths(tmp_path / "run")
    with mpi_agents(paths.root, 3, clocks=tmp_path / "clocks.json") as process:
        agents.wait_until(lambda: min(bursts(paths, 1), bursts(paths, 2)) >= 1, seconds=60)
        tasks = [parent_of(agent_pid(paths, task)) for task in range(3)]
        for pid in tasks:  # as srun does; mpirun itself would kill them a moment later
            os.kill(pid, signal.SIGTERM)
        stderr = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert [line for line in stderr.splitlines() if not agents.is_silence(line)] == []
    for node in rates:
        clock = agent_files.read_exchanges(paths, node)
        assert (clock.reference, clock.transport, clock.ended) == ("node0", "mpi", True)
        assert clock.warnings == ()
        ends = agents.of_kind(paths.node_clock(node), "end")
        assert [record["reason"] for record in ends] == ["SIGTERM"]
        links = agent_files.read_links(paths, node)
        assert set(links["peer"]) <= set(rates) - {node}
        assert len(links) > 0
        assert set(links["transport"]) == {"mpi"}
    for node in ("node1", "node2"):
        exchanges = agents.of_kind(paths.node_clock(node), "exchange")
        assert [e["burst"] for e in exchanges] == sorted(e["burst"] for e in exchanges)
        agents.assert_true_offset_is_inside(clocks, node, exchanges)


def test_agents_use_udp_when_asked_to(tmp_path: Path):
    paths = ArtifactPaths(tmp_path / "run")
    with mpi_agents(paths.root, 2, "--transport", "udp") as process:
        agents.wait_until(lambda: bursts(paths, 1) >= 0, seconds=60)
        agents.wait_until(lambda: paths.node_clock("node0").stat().st_size > 0)
        for task in range(2):
            os.kill(agent_pid(paths, task), signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert agent_files.read_exchanges(paths, "node1").transport == "udp"


def test_an_agent_whose_mpi_part_dies_goes_on_with_samples(tmp_path: Path):
    paths = ArtifactPaths(tmp_path / "run")
    with mpi_agents(paths.root, 2):
        agents.wait_until(lambda: bursts(paths, 1) >= 0, seconds=60)
        mpi_part = agent_pid(paths, 1)
        agent = parent_of(mpi_part)
        os.kill(mpi_part, signal.SIGKILL)
        agents.wait_until(lambda: len(agents.of_kind(paths.node_clock("node1"), "agent")) == 2)
        before = len(agents.records(paths.node_samples("node1")))
        agents.wait_until(lambda: len(agents.records(paths.node_samples("node1"))) > before)
        started = (parent_of(agent_pid(paths, 0)), agent)
        for pid in started:
            os.kill(pid, signal.SIGTERM)
        agents.wait_until(lambda: all(has_ended(pid) for pid in started), seconds=30)
    clock = agent_files.read_exchanges(paths, "node1")
    assert (clock.reference, clock.ended) == ("node0", True)
    assert len(clock.exchanges) >= 5
    assert any("broke off" in note for note in clock.notes)


def test_agents_talk_over_udp_where_mpi_makes_no_world_of_them(tmp_path: Path):
    paths = ArtifactPaths(tmp_path / "run")
    # as where the step has another PMI than this MPI knows: each starts a world of its own, or none
    with Agents(paths.root, 2, environment={"PMI_RANK": "0"}) as started:
        started.wait_for_bursts(0)
        assert [code for code, _ in started.end()] == [0, 0]
    for task in (0, 1):
        assert started.clock(task, "agent")[0]["transport"] == "udp"
        assert "MPI did not start" in started.clock(task, "note")[0]["text"]


def test_a_task_that_hangs_does_not_keep_the_others(tmp_path: Path):
    paths = ArtifactPaths(tmp_path / "run")
    with mpi_agents(paths.root, 2):
        agents.wait_until(lambda: bursts(paths, 1) >= 0, seconds=60)
        stopped = agent_pid(paths, 0)
        os.kill(stopped, signal.SIGSTOP)
        agents.wait_until(
            lambda: bool(agents.of_kind(paths.node_clock("node1"), "note")), seconds=60
        )
        started = [parent_of(agent_pid(paths, task)) for task in range(2)]
        for pid in started:
            os.kill(pid, signal.SIGTERM)
        # not mpirun, which may miss that node0 takes its leave
        agents.wait_until(lambda: all(has_ended(pid) for pid in started), seconds=30)
    assert "node0" in agents.of_kind(paths.node_clock("node1"), "note")[0]["text"]
    assert len(agents.of_kind(paths.node_clock("node1"), "end")) == 1
