"""``hpcprof doctor --srun`` through real Slurm: from the login node, and inside an allocation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.training import REPOSITORY

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NODES = ["node0", "node1"]
DOCTOR_TIMEOUT_S = 240


def write_spec(folder: Path, python: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        **{"schema": 1, "name": "cnn", "strategy": "horovod", "site": "test-cluster"},
        **{"nodes": 2, "ranks_per_node": 1, "time": "00:05:00"},
        **{"command": [str(python), "train.py"], "output_dir": str(folder / "runs")},
        **more,
    }
    path = folder / "hpcprof.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def environ(cluster: Cluster, nsys: Path) -> dict[str, str]:
    return {"PATH": f"{nsys.parent}:{cluster.env['PATH']}", "PYTHONPATH": str(REPOSITORY)}


def argv(spec: Path) -> list[str]:
    doctor = [sys.executable, "-m", "hpcprof", "doctor", "--srun", "--format", "json"]
    return [*doctor, "--wait", "60", str(spec)]


def rows_of(printed: str) -> dict[tuple[str, tuple[str, ...]], dict[str, Any]]:
    rows = json.loads(printed)["rows"]
    return {(row["check"], tuple(row["nodes"])): row for row in rows}


def test_two_nodes_are_found_fit_for_a_training(
    cluster: Cluster, horovod_python: Path, nsys: Path
) -> None:
    spec = write_spec(cluster.shared / "doctor", horovod_python)
    done = cluster.run(
        *argv(spec), env=environ(cluster, nsys), timeout=DOCTOR_TIMEOUT_S, check=False
    )
    rows = rows_of(done.stdout)
    here = {check: row for (check, nodes), row in rows.items() if not nodes}
    for check in ("Slurm", "controller", "KillWait", "accounting", "srun --mpi", "output folder"):
        assert here[check]["state"] == "OK", here[check]
    assert here["srun"]["found"] == "2 tasks on 2 nodes, each with its SLURM_PROCID", done.stdout
    both = {check: row for (check, nodes), row in rows.items() if list(nodes) == NODES}
    for check in ("output folder", "start lock", "nsys", "TensorFlow", "Horovod", "capture"):
        assert check in both, done.stdout
        assert both[check]["state"] == "OK", both[check]
    assert both["MPI"]["found"] == "hvd.size() is 2, as many as tasks", done.stdout
    assert done.returncode == 0, done.stdout
    assert list(spec.parent.rglob(".hpcprof-doctor*")) == []


def test_inside_an_allocation_a_node_that_differs_is_named(
    cluster: Cluster, horovod_python: Path, nsys: Path
) -> None:
    """node1 lacks the TMPDIR of the job."""
    folder = cluster.shared / "doctor-inside"
    only = cluster.layout.node_tmp / "only-node0"
    cluster.run_in_node("node0", "mkdir", "-p", str(only))
    spec = write_spec(
        folder,
        horovod_python,
        env={"TMPDIR": str(only)},
        profile={"profiler": "none"},
    )
    answer = folder / "answer.json"
    script = folder / "job.sh"
    words = " ".join(f"'{word}'" for word in argv(spec))
    script.write_text(f"#!/bin/bash\n{words} > {answer}\n")
    job = cluster.sbatch(
        script,
        *("--nodes=2", "--nodelist=node0,node1", "--partition=gpu", "--time=5"),
        f"--output={folder}/log",
        env=environ(cluster, nsys),
    )
    cluster.wait(job, timeout=DOCTOR_TIMEOUT_S)
    printed = (folder / "log").read_text()
    rows = rows_of(answer.read_text())
    assert rows["srun", ()]["state"] == "OK", (rows["srun", ()], printed)
    differs = rows["scratch folder", ("node1",)]
    assert (differs["state"], str(only) in differs["found"]) == ("WARN", True), differs
    assert rows["scratch folder", ("node0",)]["state"] == "OK"
    assert rows["MPI", tuple(NODES)]["state"] == "OK"
