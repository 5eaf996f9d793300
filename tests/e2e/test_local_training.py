"""Real TensorFlow on local ranks: the demo, and an environment that holds only TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcprof import pipeline
from hpcprof.demo import demo

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).resolve().parents[2]
ANALYSIS_PACKAGES = ("pandas", "pyarrow", "pydantic", "click", "rich", "jinja2", "nvtx")


def test_the_demo_names_the_rank_that_was_slowed(tensorflow_python: Path, tmp_path: Path):
    collected = demo(tensorflow_python, ranks=3, steps=40, output=tmp_path)
    record = collected.record
    assert collected.page is not None
    assert "is late in input" in collected.page.read_text(encoding="utf-8")
    late = [f for f in record["findings"] if f["rule"] == "rank-arrives-late"]
    accused = [(f["ranks"], f["cause"]) for f in late if f["level"] != "info"]
    assert accused == [([2], "input")]
    assert record["run"]["strategy"] == "multiworker"
    assert [clock["status"] for clock in record["clocks"].values()] == ["tight"]


def test_launch_and_annotate_need_only_tensorflow(tensorflow_python: Path, tmp_path: Path):
    find = (
        "import importlib.util as u, json, sys; "
        "print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"
    )
    there = subprocess.run(
        [tensorflow_python, "-c", find, *ANALYSIS_PACKAGES], capture_output=True, text=True
    )
    # TensorFlow itself may bring rich; whatever else is there would make this test prove nothing
    assert set(json.loads(there.stdout)) <= {"rich"}
    run_dir = tmp_path / "run"
    command = [tensorflow_python, "-m", "hpcprof", "launch", "--ranks", "2"]
    command += ["--strategy", "multiworker", "--run-dir", run_dir, "--profiler", "none", "--"]
    command += [tensorflow_python, "-m", "hpcprof", "workload", "image-cnn"]
    command += ["--strategy", "multiworker", "--steps", "12", "--data-dir", tmp_path / "data"]
    done = subprocess.run(
        [os.fspath(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = pipeline.collect(run_dir).record
    assert record["quality"]["missing"] == []
    assert record["run"]["steps_used"] + record["run"]["warm_up_steps"] == 11
    assert {info["sources"]["spans"]["state"] for info in record["quality"]["ranks"]} == {"OK"}
