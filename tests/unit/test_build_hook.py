"""The wheel holds the NVTX recorder where there is a compiler, and is pure where there is none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcprof.annotate.native import build_hook
from hpcprof.artifacts import nvtx_format

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = f"hpcprof/annotate/native/{nvtx_format.LIBRARY}"
# what a wheel is made of
SOURCES = ("hpcprof", "slurm", "site_configs", "pyproject.toml", "README.md", "LICENSE")
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the package as a clone has it, without what was compiled in this one."""
    folder = tmp_path / "sources"
    folder.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name, ignore=ignore)
        else:
            shutil.copy(REPOSITORY / name, folder / name)
    return folder


def built_wheel(sources: Path, **environ: str) -> tuple[str, set[str], str]:
    """Name of the wheel, the names in it, and what pip said."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("no hatchling in this Python, and pip would have to fetch it")
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "-w", str(sources / "out"), str(sources)]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (sources / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, set(archive.namelist()), done.stdout + done.stderr


@NEEDS_COMPILER
def test_a_wheel_holds_the_recorder_and_says_for_which_platform(sources: Path) -> None:
    name, members, _ = built_wheel(sources)
    assert LIBRARY in members
    assert name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    assert "hpcprof/_data/slurm/job.sbatch.j2" in members


def test_without_a_compiler_the_wheel_is_pure_and_the_reason_is_said(sources: Path) -> None:
    name, members, said = built_wheel(sources, CC="no-such-compiler")
    assert LIBRARY not in members
    assert name.endswith("-py3-none-any.whl")
    reason = "built without its NVTX recorder: there is no C compiler (no-such-compiler)"
    assert reason in " ".join(said.split())


@NEEDS_COMPILER
def test_a_compiler_that_fails_leaves_the_old_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build_hook.compile_recorder(tmp_path)
    before = library.read_bytes()
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(OSError, match="cc failed: "):
        build_hook.compile_recorder(tmp_path)
    assert library.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [nvtx_format.LIBRARY]


@NEEDS_COMPILER
def test_the_library_does_not_name_the_folder_it_was_built_in(tmp_path: Path) -> None:
    library = build_hook.compile_recorder(tmp_path)
    assert os.fsencode(REPOSITORY) not in library.read_bytes()
    assert build_hook.LIBRARY == nvtx_format.LIBRARY
