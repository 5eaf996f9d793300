"""Four nodes whose clocks differ, one of them with a slow network: one job, read in several ways.

The job is judged with all its files, without those of the agent, and without collectives too.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcprof.align import NodeClock
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.pipeline import ingest
from hpcprof.readers.agent_files import read_exchanges
from hpcprof.trace.store import TraceStore
from tests.accuracy.clock_error import clock_errors
from tests.cluster import training
from tests.cluster.clocks import ClockSkew, SkewedClocks
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SLOW = "node2"
SKEWS = {
    "node1": ClockSkew(monotonic_ppb=40_000, realtime_offset_ns=30_000_000),
    "node2": ClockSkew(monotonic_ppb=-60_000, realtime_offset_ns=-45_000_000),
    "node3": ClockSkew(monotonic_ppb=15_000),
}


@dataclass(frozen=True)
class Done:
    """A finished job, and the truth about its clocks between two readings of the host's."""

    job: training.Training
    truth: SkewedClocks
    first_ns: int
    last_ns: int

    def clocks(self, folder: Path) -> dict[str, NodeClock]:
        """The clocks as they are aligned from the files in ``folder``."""
        return dict(ingest(ArtifactPaths(folder), TraceStore(folder / "store")).clocks)

    def errors(self, clocks: dict[str, NodeClock]) -> dict[str, dict[str, object]]:
        return clock_errors(clocks, self.truth, self.first_ns, self.last_ns)


@pytest.fixture(scope="module")
def done(cluster: Cluster, horovod_python: Path) -> Iterator[Done]:
    """Training and judging it takes a minute; no test changes the run folder."""
    folder = cluster.shared / "slow-network"
    first_ns = time.monotonic_ns()
    with cluster.skewed_clocks(SKEWS) as truth, cluster.slow_network(SLOW, mbit_per_s=100):
        job = training.submit(
            cluster,
            horovod_python,
            folder,
            nsys=None,
            nodes=4,
            env=truth.env,
            spec={"profile": {"agent_interval_s": 10}},
        )
        with job.own_cores():
            assert job.wait() == "COMPLETED", job.output()
        yield Done(job, truth, first_ns, time.monotonic_ns())


def accused(record):
    return [f for f in record["findings"] if f["status"] == "ok" and f["level"] != "info"]


def copy_of(done: Done, tmp_path: Path, *left_out: str) -> Path:
    """The run folder without some of its files."""
    folder = tmp_path / "run"
    ignored = shutil.ignore_patterns("store", "findings.json", "report.html", *left_out)
    shutil.copytree(done.job.run_dir, folder, ignore=ignored)
    return folder


def test_the_slow_link_is_named_and_no_rank_is_accused(done: Done):
    (finding,) = accused(done.job.record())
    assert (finding["rule"], finding["cause"]) == ("node-link-slow", "interconnect")
    assert (finding["nodes"], finding["ranks"]) == ([SLOW], [])
    links = done.job.record()["interconnect"]["links"]["sends_gb_s"]
    # the bucket holds 8 kB: 100 Mbit/s and a little
    assert 0.008 < links[SLOW] < 0.03
    assert min(rate for node, rate in links.items() if node != SLOW) > 5 * links[SLOW]


def test_every_agent_ends_by_itself_when_the_training_has_ended(done: Done):
    paths = ArtifactPaths(done.job.run_dir)
    assert paths.node_names() == ["node0", "node1", "node2", "node3"]
    assert [read_exchanges(paths, node).ended for node in paths.node_names()] == [True] * 4


def test_clocks_compared_by_the_agents_are_true_to_their_bound(done: Done, tmp_path: Path):
    clocks = done.clocks(copy_of(done, tmp_path))
    assert {clock.method for clock in clocks.values()} == {"agent ping-pong"}
    errors = done.errors(clocks)
    assert sorted(errors) == ["node1", "node2", "node3"]
    assert all(error["is_within"] for error in errors.values()), errors
    # the queue of the slow link makes the exchanges of its own node wide, not those of others
    assert errors["node1"]["bound_ns"] < 1_000_000
    # a bound of 60 µs at both ends of 40 s leaves a rate uncertain by a few ppm; most know it to 1
    truth = {"node0": 0, **{node: skew.monotonic_ppb for node, skew in SKEWS.items()}}
    drifts = {node: clock.drift_ppb for node, clock in clocks.items()}
    assert drifts == pytest.approx(truth, abs=2_500)


def test_without_the_agents_files_collectives_align_the_nodes_and_the_bound_holds(
    done: Done, tmp_path: Path
):
    clocks = done.clocks(copy_of(done, tmp_path, "nodes"))
    assert {(clock.method, clock.status) for clock in clocks.values()} == {
        ("collective ends", "bounded")
    }
    errors = done.errors(clocks)
    assert all(error["is_within"] for error in errors.values()), errors
    # nobody leaves an allreduce before the slow node has sent its part: 0.1 to 0.2 s
    assert max(error["bound_ns"] for error in errors.values()) < 500_000_000


def test_without_collectives_order_between_nodes_is_called_unresolvable(done: Done, tmp_path: Path):
    folder = copy_of(done, tmp_path, "nodes", "spans.bin")
    clocks = done.clocks(folder)
    assert {clock.status for clock in clocks.values()} == {"utc-only"}
    record = training.collect(done.job.cluster, folder, done.job.env)
    (finding,) = [f for f in record["findings"] if f["rule"] == "order-between-nodes-unknown"]
    assert finding["status"] == "not_resolvable"
    assert accused(record) == []
