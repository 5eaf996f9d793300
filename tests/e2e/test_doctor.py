"""``hpcprof doctor`` with the real nsys, TensorFlow and Horovod of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcprof.doctor import CHECKS, lanes
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, WARN, Row
from hpcprof.doctor.subject import Request, Subject

pytestmark = pytest.mark.e2e

# records nothing with nsys 2022.4, silently
NVTX_TOO_NEW = "0.2.12"
CACHE = Path(os.environ.get("HPCPROF_CACHE", Path.home() / ".cache" / "hpcprof"))
# hang guards: doctor itself gives up before
GUARD_SECONDS = 75
SRUN_GUARD_SECONDS = 180


@pytest.fixture(scope="session")
def new_nvtx(horovod_python: Path) -> Path:
    """A folder with the package nvtx that does not fit; skips when it cannot be fetched."""
    folder = CACHE / f"nvtx-{NVTX_TOO_NEW}-{horovod_python.parents[1].name}"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        argv = [str(horovod_python), "-m", "pip", "install", "--quiet", "--no-deps"]
        argv += ["--target", str(partial), f"nvtx=={NVTX_TOO_NEW}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        if done.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            pytest.skip(f"nvtx {NVTX_TOO_NEW} could not be fetched: {done.stderr[-200:]}")
        partial.rename(folder)
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A short path, as nsys makes sockets in it."""
    folder = Path("/tmp") / f"hp{os.getpid()}-{abs(hash(tmp_path)) % 10**6}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def capture(
    nsys: Path, python: Path, environ: Mapping[str, str], *, extra: Sequence[str] = ()
) -> Row:
    """The row of the capture alone."""
    rows: list[Row] = []
    request = Request(nsys_path=str(nsys), nsys_extra=extra)
    subject = Subject(request, environ, (str(python),))
    checks = [check for check in CHECKS if check.name == "capture"]
    lanes.run(checks, subject, rows.append, deadline=time.monotonic() + GUARD_SECONDS)
    (row,) = rows
    return row


def test_a_fitting_pair_of_nvtx_and_nsys_is_ok_and_nothing_is_left_behind(
    nsys: Path, horovod_python: Path, scratch: Path
) -> None:
    # as inside a job: its variables must not make the capture a part of it
    job = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "PMIX_RANK": "3"}
    row = capture(nsys, horovod_python, {**os.environ, **job, "TMPDIR": str(scratch)})
    assert row.state == OK, row
    assert row.found.startswith("15 of 15 ranges arrived: nvtx 0.2.11 and nsys 20")
    folder = scratch / f"hpcprof-{os.getuid()}"
    assert [path.name for path in folder.iterdir() if path.name.startswith("doctor")] == []


def test_a_pair_that_records_nothing_fails_with_the_cure(
    nsys: Path, horovod_python: Path, scratch: Path, new_nvtx: Path
) -> None:
    environ = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(new_nvtx)}
    row = capture(nsys, horovod_python, environ)
    assert row.state == FAIL, row
    assert row.found.startswith(f"nvtx {NVTX_TOO_NEW} and nsys 20")
    assert row.found.endswith("do not fit: ranges are not recorded")
    assert "pip install 'nvtx<0.2.12'" in row.advice


def test_options_with_which_a_job_would_record_nothing_fail_and_are_named(
    nsys: Path, horovod_python: Path, scratch: Path
) -> None:
    extra = ["--capture-range=nvtx", "--nvtx-capture=never@nowhere"]
    row = capture(nsys, horovod_python, {**os.environ, "TMPDIR": str(scratch)}, extra=extra)
    assert row.state == FAIL, row
    assert "--nvtx-capture=never@nowhere" in row.found
    assert row.found.endswith("without them: all ranges arrive")


def test_a_training_without_nvtx_is_warned(
    nsys: Path, tensorflow_python: Path, scratch: Path
) -> None:
    row = capture(nsys, tensorflow_python, {**os.environ, "TMPDIR": str(scratch)})
    assert row.state == WARN, row
    assert "package nvtx cannot be used" in row.found


def doctor(folder: Path, nsys: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and rows by check of the whole doctor, on a machine without Slurm."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "sh", "env"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    argv = [sys.executable, "-m", "hpcprof", "doctor", "--format", "json", *options]
    guard = SRUN_GUARD_SECONDS if "--srun" in options else GUARD_SECONDS
    environ = {**os.environ, "PATH": f"{nsys.parent}:{tools}"}
    done = subprocess.run(
        argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=guard
    )
    assert done.stderr == ""
    rows = json.loads(done.stdout)["rows"]
    return done.returncode, {row["check"]: row for row in rows}


def test_the_whole_doctor_with_a_job_spec(nsys: Path, horovod_python: Path, tmp_path: Path) -> None:
    activate = f"source {horovod_python.parent}/activate"
    (tmp_path / "hpcprof.yaml").write_text(
        "{schema: 1, name: cnn, strategy: horovod, site: generic-slurm, time: 10, "
        f"command: python train.py, python: {{activate: {activate}}}}}"
    )
    code, rows = doctor(tmp_path, nsys)
    states = {check: row["state"] for check, row in rows.items()}
    for check in ("job spec", "job script", "hpcprof", "environment", "nsys", "nsys importer"):
        assert states[check] == OK, rows[check]
    for check in ("Python", "TensorFlow", "Horovod", "package nvtx", "capture"):
        assert states[check] == OK, rows[check]
    assert rows["TensorFlow"]["found"].startswith("2.15")
    assert rows["TensorFlow"]["found"].endswith("with NVTX")
    assert rows["Horovod"]["found"].endswith("built with MPI, GLOO, NVTX")
    assert (states["Slurm"], states["GPU"]) == (NOT_CHECKED, NOT_CHECKED)
    assert code == 0, rows


def test_the_whole_doctor_with_tensorflow_and_nothing_else(
    nsys: Path, tensorflow_python: Path, tmp_path: Path
) -> None:
    code, rows = doctor(tmp_path, nsys, "--python", str(tensorflow_python))
    states = {check: row["state"] for check, row in rows.items()}
    assert states["job spec"] == NOT_CHECKED
    assert states["TensorFlow"] == OK, rows["TensorFlow"]
    assert states["Horovod"] == NOT_CHECKED
    assert (states["package nvtx"], states["capture"]) == (WARN, WARN)
    assert code == 0, rows


# two tasks with a real MPI between them; what srun sets itself is set as it does
SRUN = """#!/usr/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,tcp OMPI_MCA_plm=isolated
exec MPIRUN --oversubscribe ROOT -n 2 /usr/bin/bash -c '
  export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_NTASKS=2
  export SLURMD_NODENAME=node$OMPI_COMM_WORLD_RANK
  LONELY exec "$@"' x "$@"
"""
# as with an srun --mpi=… that the training's MPI does not understand
LONELY = 'for name in "${!OMPI_@}" "${!PMIX_@}"; do unset "$name"; done;'


@pytest.mark.parametrize("lonely", [False, True], ids=["together", "lonely"])
def test_two_tasks_of_horovod_see_each_other_or_are_told_to_be_alone(
    nsys: Path, horovod_python: Path, tmp_path: Path, lonely: bool
) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun")
    root = "--allow-run-as-root" if os.getuid() == 0 else ""
    text = SRUN.replace("MPIRUN", mpirun).replace("ROOT", root)
    (tmp_path / "tools").mkdir()
    srun = tmp_path / "tools" / "srun"
    srun.write_text(text.replace("LONELY", LONELY if lonely else ""))
    srun.chmod(0o755)
    (tmp_path / "hpcprof.yaml").write_text(
        "{schema: 1, name: cnn, strategy: horovod, site: generic-slurm, time: 10, nodes: 2, "
        f"profile: {{profiler: none}}, command: {horovod_python} train.py}}"
    )
    code, rows = doctor(tmp_path, nsys, "--srun")
    assert rows["srun"]["found"] == "2 tasks on 2 nodes, each with its SLURM_PROCID"
    assert rows["Horovod"]["state"] == OK, rows["Horovod"]
    assert rows["Horovod"]["nodes"] == ["node0", "node1"]
    said = "hvd.size() is 2, as many as tasks"
    if lonely:
        said = "hvd.size() is 1 in 2 tasks: they do not see each other"
    assert (rows["MPI"]["found"], rows["MPI"]["nodes"]) == (said, ["node0", "node1"]), rows["MPI"]
    assert rows["MPI"]["state"] == (FAIL if lonely else OK)
    assert code == 4  # no sbatch here
