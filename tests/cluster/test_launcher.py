"""Real Slurm and the launcher: what becomes of a job is what would have become of it without us.

The trainings are plain Python: steps that sleep, and an end of their own. All jobs of this file
run at once; the fixture has begun them before the first test.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts import span_format
from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster import training
from tests.cluster.cluster import FINAL_STATES, Cluster
from tests.cluster.training import REPOSITORY, Training

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RANKS = training.RANKS
STEP_S = 0.1
# argv: steps of the first start, steps of the next one (requeued)
PROGRAM = f"""
import os, signal, sys, time
from hpcprof import annotate
again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
for _ in range(int(sys.argv[2 if again else 1])):
    with annotate.step():
        time.sleep({STEP_S})
end = os.environ.get("SLURM_ARRAY_TASK_ID")
if end == "1":
    sys.exit(7)
if end in ("2", "3"):
    os.kill(os.getpid(), {{"2": signal.SIGTERM, "3": signal.SIGKILL}}[end])
"""
# by number of the array task: with code 0, with 7, by SIGTERM, by SIGKILL
ENDS = range(4)
EXIT_CODES = [0, 7, 143, 137]
# Slurm looks every 30 s. So late that the look that sends the signal is not the one that ends the
# job: the limit is then the next look, 30 s later
LIMIT_IN_S = 31
LONG = 6000


@dataclass(frozen=True)
class Jobs:
    """Jobs that have been begun. ``ends`` and ``plain_ends`` are arrays, one task for each end."""

    limited: Training
    unprofiled: Training
    requeued: Training
    ends: Training
    plain_ends: int


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, horovod_python: Path, nsys: Path) -> Iterator[Jobs]:
    folder = cluster.shared / "launcher"
    folder.mkdir(exist_ok=True)
    program = folder / "train.py"
    program.write_text(PROGRAM)

    def submit(name: str, steps: str, nodes: int = 1, **spec: Any) -> Training:
        command = [str(horovod_python), str(program), *steps.split()]
        fields = {"command": command, "env": {}, "gpus_per_node": 0, **spec}
        return training.submit(
            cluster, horovod_python, folder / name, nsys=nsys, nodes=nodes, spec=fields
        )

    limited = submit("limited", f"{LONG} 0", nodes=2)
    unprofiled = submit("unprofiled", f"{LONG} 0", nodes=2, profile={"profiler": "none"})
    requeued = submit("requeued", f"{LONG} 5", ranks_per_node=1)
    array = {"ranks_per_node": 1, "sbatch_extra": [f"--array=0-{len(ENDS) - 1}"]}
    ends = submit("ends", "5 5", **array)
    plain = folder / "plain.sh"
    plain.write_text(f"#!/bin/bash\nsrun '{horovod_python}' '{program}' 5 5\n")
    plain_ends = cluster.sbatch(
        plain, *array["sbatch_extra"], "--output=plain-%a.log", env={"PYTHONPATH": str(REPOSITORY)}
    )

    limited.wait_until(lambda: has_steps(limited.run_dir, RANKS, 20), "step 20 on all ranks")
    unprofiled.wait_until(lambda: has_steps(unprofiled.run_dir, RANKS, 20), "step 20")
    cluster.end_in(limited.job_id, LIMIT_IN_S)
    cluster.end_in(unprofiled.job_id, LIMIT_IN_S)
    requeued.wait_until(lambda: has_steps(requeued.run_dir, 1, 5), "step 5")
    requeue(cluster, requeued)
    yield Jobs(limited, unprofiled, requeued, ends, plain_ends)
    cluster.cancel_all()


def has_steps(run_dir: Path, ranks: int, steps: int) -> bool:
    known = ArtifactPaths(run_dir).rank_ids()
    return len(known) == ranks and all(len(step_ends_ns(run_dir, r)) >= steps for r in known)


def requeue(cluster: Cluster, job: Training) -> None:
    cluster.run("scontrol", "requeue", str(job.job_id))
    # it is held back for two minutes, and can be let go when its first start has been cleaned up
    deadline = time.monotonic() + 60
    while queue_state(cluster, job.job_id) != "PENDING":
        assert time.monotonic() < deadline, job.output()
        time.sleep(1)
    cluster.run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now")


def queue_state(cluster: Cluster, job_id: int) -> str:
    return cluster.run("squeue", "--noheader", "--format=%T", f"--jobs={job_id}").stdout.strip()


def wait_for_array(cluster: Cluster, job_id: int) -> None:
    deadline = time.monotonic() + training.JOB_TIMEOUT_S
    while True:
        rows = cluster.sacct(job_id, "JobID,State", "--allocations")
        done = [row for row in rows if row["State"].split()[0] in FINAL_STATES]
        if len(done) == len(ENDS):
            return
        assert time.monotonic() < deadline, rows
        time.sleep(1)


def accounting(cluster: Cluster, job_id: int) -> dict[str, Any]:
    """State and exit codes of the job, its script (".batch") and its training (".srun").

    Which of the two steps that begin together is number 0 is a matter of luck.
    """
    rows = cluster.sacct(job_id, "JobID,JobName,State,ExitCode,DerivedExitCode")
    found = {}
    for row in rows:
        if not row.pop("JobName").startswith("hpcprof-"):
            name = row.pop("JobID").removeprefix(str(job_id))
            found[re.sub(r"\.[0-9]+$", ".srun", name)] = row
    return found


def manifests(run_dir: Path) -> list[dict[str, Any]]:
    paths = ArtifactPaths(run_dir)
    return [json.loads(paths.manifest(rank).read_text()) for rank in paths.rank_ids()]


def step_ends_ns(run_dir: Path, rank: int) -> list[int]:
    path = ArtifactPaths(run_dir).spans(rank)
    data = path.read_bytes() if path.exists() else b""
    size = span_format.BLOCK_BYTES
    whole = data[size : len(data) // size * size]
    records = span_format.RECORD.iter_unpack(whole)
    return [end for _, end, _, step, _, flags, _ in records if is_step(flags, step)]


def is_step(flags: int, step: int) -> bool:
    return flags & span_format.KIND_MASK == span_format.KIND_STEP and step >= 0


def steps_in_report(nsys: Path, report: Path, folder: Path) -> int:
    """Ranges of steps in a report, read by nsys itself."""
    target = folder / f"{report.parent.name}.sqlite"
    argv = [nsys, "export", "--type=sqlite", "--force-overwrite=true", "-o", target, report]
    subprocess.run(argv, capture_output=True, check=True)
    with sqlite3.connect(target) as database:
        found = database.execute(
            "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id "
            "WHERE coalesce(text, value) LIKE 'step %'"
        )
        return int(found.fetchone()[0])


def test_exit_codes_reach_slurm_as_without_hpcprof(cluster: Cluster, jobs: Jobs) -> None:
    for job_id in (jobs.ends.job_id, jobs.plain_ends):
        wait_for_array(cluster, job_id)
    with_us = accounting(cluster, jobs.ends.job_id)
    assert with_us == accounting(cluster, jobs.plain_ends)
    assert set(with_us) == {f"_{end}{part}" for end in ENDS for part in ("", ".batch", ".srun")}
    states = [with_us[f"_{end}"]["State"] for end in ENDS]
    assert states == ["COMPLETED", "FAILED", "FAILED", "FAILED"]


def test_every_task_of_an_array_has_a_run_folder_and_is_collected(jobs: Jobs) -> None:
    jobs.ends.wait()
    folders = sorted(jobs.ends.run_dir.parent.glob("cnn-*-a*"))
    name = jobs.ends.run_dir.name
    assert [folder.name for folder in folders if folder.is_dir()] == [
        f"{name}-a{end}" for end in ENDS
    ]
    for folder, code in zip(folders, EXIT_CODES, strict=True):
        (found,) = manifests(folder)
        assert (found["exit_code"], found["profiler"]["name"]) == (code, "nsys")
        assert ArtifactPaths(folder).findings.exists()


def test_a_requeued_job_leaves_both_recordings(jobs: Jobs) -> None:
    assert jobs.requeued.wait() == "COMPLETED", jobs.requeued.output()
    first, second = jobs.requeued.run_dir, Path(f"{jobs.requeued.run_dir}-r1")
    assert len(step_ends_ns(first, 0)) >= 5
    assert len(step_ends_ns(second, 0)) == 5
    assert [found["exit_code"] for found in manifests(second)] == [0]
    names = {path.name for path in first.parent.iterdir() if path.is_dir()}
    assert names == {first.name, second.name}
    assert all(ArtifactPaths(run_dir).findings.exists() for run_dir in (first, second))


def test_recordings_are_complete_before_the_time_limit(
    jobs: Jobs, nsys: Path, tmp_path: Path
) -> None:
    assert jobs.limited.wait() == "TIMEOUT", jobs.limited.output()
    paths = ArtifactPaths(jobs.limited.run_dir)
    assert paths.rank_ids() == list(range(RANKS))
    for found in manifests(jobs.limited.run_dir):
        rank = found["rank"]
        assert found["state_reason"].startswith("stopped before the time limit; nsys report")
        stop_ns = max(end for _, end, _ in found["profiler_busy"])
        ends = step_ends_ns(jobs.limited.run_dir, rank)
        before, after = [t for t in ends if t <= stop_ns], [t for t in ends if t > stop_ns]
        # the training has gone on: half a minute was left, or 300 steps
        assert len(after) >= 50
        assert 20 <= steps_in_report(nsys, paths.nsys_report(rank), tmp_path) <= len(before)
    record = jobs.limited.record()
    # what was recorded is all there, and that it is not the whole run is said
    assert [info["state"] for info in record["quality"]["ranks"]] == ["PARTIAL"] * RANKS
    printed = [line for line in jobs.limited.output().splitlines() if "flush: rank" in line]
    assert len(printed) == RANKS, jobs.limited.output()


def test_the_time_limit_looks_to_slurm_as_without_a_profiler(cluster: Cluster, jobs: Jobs) -> None:
    found: list[Mapping[str, Any]] = []
    for job in (jobs.limited, jobs.unprofiled):
        assert job.wait() == "TIMEOUT", job.output()
        rows = accounting(cluster, job.job_id)
        found.append({part: rows[part] for part in ("", ".batch")})
    assert found[0] == found[1]
