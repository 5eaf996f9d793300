"""The first real job: sbatch → every rank under Nsight Systems → collect → who is slow, and why.

Real Slurm, Horovod over MPI, nsys and faults; see docs/test-cluster.md.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster import training
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def judged(record):
    """What was found, without what was merely not measured."""
    return [f for f in record["findings"] if f["status"] == "ok" and f["level"] != "info"]


LINKS = ("node-link-slow", "node-link-often-slow", "links-not-measured")


def states(record):
    return {info["rank"]: info["state"] for info in record["quality"]["ranks"]}


def assert_enough_steps(record):
    # how many count as warm-up depends on the noise of the first ones
    assert record["run"]["steps_used"] + record["run"]["warm_up_steps"] >= 60
    assert record["run"]["steps_used"] >= 40
    assert record["run"]["step_ns"] >= 250e6


def assert_stragglers_assessed(record):
    """What was recorded sufficed for a verdict on every rank."""
    assert "stragglers-not-assessed" not in [f["rule"] for f in record["findings"]]
    assert record["quality"]["left_out"] == []


def test_a_healthy_job_names_no_straggler(cluster: Cluster, horovod_python: Path, nsys: Path):
    job = training.submit(cluster, horovod_python, cluster.shared / "healthy", nsys=nsys)
    with job.own_cores():
        assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    assert_enough_steps(record)
    assert states(record) == dict.fromkeys(range(4), "OK")
    assert judged(record) == []
    assert_stragglers_assessed(record)
    assert record["quality"]["collectives"] == "profiler"  # Horovod's own ranges, with bytes
    assert record["run"]["payload_bytes"] == 4 * sum((3 * 9 * 24, 9 * 24 * 48, 9 * 48 * 96, 245760))
    assert {clock["status"] for clock in record["clocks"].values()} == {"tight"}
    assert max(clock["bound_ns"] for clock in record["clocks"].values()) < 1_000_000
    assert not [f for f in record["findings"] if f["rule"] in ("agent-left-no-record", *LINKS)]


@pytest.mark.parametrize("profiled", [True, False], ids=["nsys", "own-spans"])
def test_slow_files_of_one_node_name_its_ranks_and_input(
    cluster: Cluster, horovod_python: Path, nsys: Path, profiled: bool
):
    folder = cluster.shared / f"slow-files-{profiled}"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    # a step reads 160 kB per rank, both ranks from one rate. With batches read ahead only the
    # slower of the two would ever be late: the other one reads while that one is waited for
    with cluster.slow_filesystem("node1", folder / "data", mb_per_s=0.6):
        job = training.submit(
            cluster,
            horovod_python,
            folder,
            nsys=nsys if profiled else None,
            steps=64,
            options=["--prefetch=0"],
        )
        with job.own_cores():
            assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    assert_enough_steps(record)
    assert states(record) == dict.fromkeys(range(4), "OK" if profiled else "NOT_PROFILED")
    (finding,) = judged(record)
    assert (finding["rule"], finding["level"]) == ("rank-arrives-late", "critical")
    assert (finding["ranks"], finding["nodes"]) == ([2, 3], ["node1"]), record["phases"]
    assert (finding["cause"], finding["phase"]) == ("input", "input")
    assert finding["message"].startswith("node node1 is late in input")
    if not profiled:
        lacking = [f for f in record["findings"] if f["status"] == "not_collected"]
        assert any("no Nsight Systems report" in f["message"] for f in lacking)
        assert {f["next"]["recipe"] for f in lacking} == {"timeline"}


def test_a_rank_at_a_quarter_of_a_core_is_named_with_compute(
    cluster: Cluster, horovod_python: Path, nsys: Path
):
    job = training.submit(cluster, horovod_python, cluster.shared / "slow-rank", nsys=nsys)
    with job.own_cores({1: 0.25}):
        assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    assert_enough_steps(record)
    (finding,) = judged(record)
    assert (finding["rule"], finding["level"]) == ("rank-arrives-late", "critical")
    assert (finding["ranks"], finding["nodes"]) == ([1], ["node0"])
    assert finding["cause"] == "compute"


def test_a_killed_rank_is_named_and_the_rest_is_used(
    cluster: Cluster, horovod_python: Path, nsys: Path
):
    job = training.submit(cluster, horovod_python, cluster.shared / "killed", nsys=nsys)
    with job.own_cores():
        job.wait_for_step(25)
        cluster.kill_rank(job.training_pid(2))
        job.wait()  # to Slurm such a job may even be COMPLETED: srun gives up waiting with code 0
    record = job.record()
    (early,) = [f for f in record["findings"] if f["rule"] == "job-ended-early"]
    assert (early["ranks"], early["nodes"]) == ([2], ["node1"])
    assert "was ended by SIGKILL after step" in early["message"]
    assert record["run"]["steps_used"] >= 10
    assert_stragglers_assessed(record)


def test_the_time_limit_is_told_and_what_was_recorded_is_used(
    cluster: Cluster, horovod_python: Path, nsys: Path
):
    job = training.submit(
        cluster,
        horovod_python,
        cluster.shared / "time-limit",
        nsys=nsys,
        steps=5000,
        spec={"profile": {"horovod_timeline": True}},
    )
    with job.own_cores():
        # Slurm may end the job at once, and what Horovod's timeline holds in memory is lost then:
        # some 8 KiB, ten allreduces
        job.wait_for_step(40)
        cluster.end_in(job.job_id, 1)
        assert job.wait() == "TIMEOUT", job.output()
    record = job.record()
    (early,) = [f for f in record["findings"] if f["rule"] == "job-ended-early"]
    assert early["cause"] == "time limit"
    # Horovod's timeline was cut off in the middle of a record
    assert record["horovod"]["allreduces"] >= 25 * 4
    assert record["horovod"]["transfer_ns"] > 0
    assert record["run"]["steps_used"] >= 10
    lost = [f for f in record["findings"] if f["rule"] == "recording-incomplete"]
    # the time limit ends nsys's own agents: the reports are lost, our spans are not
    assert set(states(record).values()) <= {"PARTIAL", "OK"}
    assert lost or set(states(record).values()) == {"OK"}
    assert_stragglers_assessed(record)


def test_a_full_disk_stops_the_recording_and_not_the_training(
    cluster: Cluster, horovod_python: Path, nsys: Path
):
    folder = cluster.shared / "full-disk"
    with cluster.full_disk(folder / "runs", mb=2):
        job = training.submit(cluster, horovod_python, folder, nsys=nsys, collect=False)
        with job.own_cores():
            job.wait_for_step(25)
            fill(folder / "runs" / "filler")
            assert job.wait() == "COMPLETED", job.output()
        assert cluster.sacct(job.job_id, "ExitCode", "-X") == [{"ExitCode": "0:0"}]
        record = job.collect()
    stopped = [
        f["message"] for f in record["findings"] if "recording of spans stopped" in f["message"]
    ]
    assert any("No space left on device" in message for message in stopped), record["findings"]
    assert record["run"]["steps_used"] >= 10
    assert_stragglers_assessed(record)
    assert not ArtifactPaths(job.run_dir).findings.exists()


def test_a_multiworker_job_runs_and_is_recorded(cluster: Cluster, horovod_python: Path, nsys: Path):
    folder = cluster.shared / "multiworker"
    job = training.submit(
        cluster, horovod_python, folder, nsys=nsys, steps=15, strategy="multiworker"
    )
    assert job.wait() == "COMPLETED", job.output()
    record = job.record()
    assert (record["run"]["strategy"], record["run"]["nodes"]) == (
        "multiworker",
        ["node0", "node1"],
    )
    assert states(record) == dict.fromkeys(range(4), "OK")
    # the first of 15 steps has no collective before it
    assert record["run"]["steps_used"] + record["run"]["warm_up_steps"] == 14
    assert record["quality"]["collectives"] == "marked"  # stamped inside the graph


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
