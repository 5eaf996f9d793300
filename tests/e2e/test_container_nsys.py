"""Real nsys outside, the training's NVTX ranges inside a container runtime that clears variables.

The runtime is the test's own (tests/unit/test_container.py): no real one has been run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from hpcprof.artifacts import rank_env
from hpcprof.launch import container
from tests.unit.test_container import write_runtimes

pytestmark = pytest.mark.e2e

PROGRAM = """
import nvtx
for number in range(7):
    with nvtx.annotate("inside"):
        pass
"""


def test_nvtx_ranges_of_a_container_with_a_clean_environment_are_recorded(
    tmp_path: Path, nsys: Path, horovod_python: Path
) -> None:
    write_runtimes(tmp_path / "bin")
    image = tmp_path / "image.json"
    image.write_text(json.dumps({"PATH": os.environ["PATH"]}))
    words = ["apptainer", "exec", "--cleanenv", str(image), str(horovod_python), "-c", PROGRAM]
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0",
        rank_env.NVTX: "1",
    }
    argv, environ = container.command(words, environ, [tmp_path])
    profile = [str(nsys), "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    profile += [f"--session-new=hpcprof-container-{os.getpid()}", "-o", str(tmp_path / "r"), *argv]
    subprocess.run(profile, env=environ, capture_output=True, check=True)
    export = [nsys, "export", "--type=sqlite", "-o", tmp_path / "r.sqlite", tmp_path / "r.nsys-rep"]
    subprocess.run(export, capture_output=True, check=True)
    with sqlite3.connect(tmp_path / "r.sqlite") as report:
        found = report.execute(
            "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id "
            "WHERE coalesce(text, value) = 'inside'"
        )
        assert found.fetchone() == (7,)
