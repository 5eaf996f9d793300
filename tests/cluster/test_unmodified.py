"""A training that knows nothing of hpcprof, and no nsys: what our own recorder tells suffices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster import training
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 80
SLOW_NODE = "node2"


def judged(record):
    return [f for f in record["findings"] if f["status"] == "ok" and f["level"] != "info"]


def test_a_rank_at_a_quarter_of_a_core_is_named_with_compute(
    cluster: Cluster, horovod_python: Path
):
    job = training.submit(
        cluster,
        horovod_python,
        cluster.shared / "unmodified-slow-rank",
        nsys=None,
        steps=STEPS,
        unmodified=True,
    )
    with job.own_cores({1: 0.25}):
        assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    (finding,) = judged(record)
    assert (finding["rule"], finding["level"]) == ("rank-arrives-late", "critical")
    assert (finding["ranks"], finding["nodes"]) == ([1], ["node0"])
    assert (finding["cause"], finding["phase"]) == ("compute", "backward")
    assert record["quality"]["collectives"] == "profiler"
    assert record["run"]["steps_used"] >= 40
    assert not ArtifactPaths(job.run_dir).nsys_report(0).exists()


def test_a_slow_network_is_named_and_no_rank(cluster: Cluster, horovod_python: Path):
    with cluster.slow_network(SLOW_NODE, mbit_per_s=100):
        job = training.submit(
            cluster,
            horovod_python,
            cluster.shared / "unmodified-slow-network",
            nsys=None,
            nodes=4,
            steps=STEPS,
            spec={"profile": {"agent_interval_s": 10}},
            unmodified=True,
        )
        with job.own_cores():
            assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    (finding,) = judged(record)
    assert (finding["rule"], finding["cause"]) == ("node-link-slow", "interconnect")
    assert (finding["nodes"], finding["ranks"]) == ([SLOW_NODE], [])
    assert record["quality"]["collectives"] == "profiler"
