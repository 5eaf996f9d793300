"""Job scripts of containers under Pyxis, as far as that can be tried without Pyxis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcprof
from hpcprof.artifacts.run_record import launch_settings
from hpcprof.submit.containers import launcher_inside
from tests.unit.slurm_stubs import (
    Stubs,
    install_stubs,
    make_spec,
    run_script,
    script_for,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return install_stubs(tmp_path)


PYXIS = {"runtime": "pyxis", "image": "img", "mounts": ["/data", "/a:/b:ro"]}


def test_launch_runs_inside_the_image_of_pyxis(stubs: Stubs, tmp_path: Path) -> None:
    spec = make_spec(container=PYXIS)
    package = tmp_path / "site-packages/hpcprof"
    package.mkdir(parents=True)
    done = run_script(script_for(stubs, spec), stubs, STUB_PACKAGE=str(package))
    assert (done.returncode, done.stderr) == (0, "")
    run_dir = tmp_path / "runs/cnn-4711"
    (call,) = stubs.calls()
    mounts = [f"{tmp_path}:{tmp_path}", "/data:/data", "/a:/b:ro", f"{run_dir}:{run_dir}"]
    mounts += [f"{package}:/opt/hpcprof/hpcprof:ro", "/tmp:/tmp"]
    assert call["argv"] == [
        *("--export=ALL", "--cpus-per-task=1", "--wait=0", "--container-image=img"),
        f"--container-workdir={tmp_path}",
        f"--container-mounts={','.join(mounts)}",
        *(*launcher_inside(spec), "train"),
    ]
    assert launch_settings(run_dir / "run.json")["scratch"] == "/tmp"


@pytest.mark.parametrize("package", ["/nonexistent", "/tmp/../tmp,"])
def test_the_image_of_pyxis_is_used_alone_when_hpcprof_cannot_be_mounted(
    stubs: Stubs, tmp_path: Path, package: str
) -> None:
    script = script_for(stubs, make_spec(container=PYXIS))
    done = run_script(script, stubs, STUB_PACKAGE=package, STUB_EXIT="3")
    assert done.returncode == 3
    assert "the training runs without hpcprof" in done.stderr
    (call,) = stubs.calls()
    mounts = f"--container-mounts={tmp_path}:{tmp_path},/data:/data,/a:/b:ro"
    assert call["argv"][-2:] == [mounts, "train"]


def test_a_strict_activation_does_not_let_hpcprof_end_the_job(stubs: Stubs) -> None:
    spec = make_spec(container=PYXIS, python={"activate": "set -euo pipefail"})
    (stubs.bin / "hpcprof-python").unlink()
    done = run_script(script_for(stubs, spec), stubs, STUB_EXIT="3")
    assert (done.returncode, len(stubs.calls())) == (3, 1)
    assert "the training runs without hpcprof, for the reason above" in done.stderr


@pytest.mark.parametrize(
    ("python", "says"),
    [
        (sys.executable, "hpcprof launch: no rank in the environment"),
        ("/nonexistent/python3", "/nonexistent/python3 in the container cannot run hpcprof"),
    ],
)
def test_the_words_inside_start_launch_or_else_the_training(python: str, says: str) -> None:
    spec = make_spec(container={**PYXIS, "python": python})
    root = str(Path(hpcprof.__file__).parents[1])
    words = [word.replace("/opt/hpcprof", root) for word in launcher_inside(spec)]
    command = [*words, "sh", "-c", 'echo "$1"; exit 7', "sh", "it's $HOME"]
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "it's $HOME\n")
    assert says in done.stderr
