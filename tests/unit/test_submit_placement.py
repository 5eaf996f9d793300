"""Where files go: paths are absolute when the script is made, and need no variable in the job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcprof.errors import EnvironmentLacksError, UsageError
from hpcprof.submit.placement import Placement, place
from tests.unit.slurm_stubs import make_site, make_spec

pytestmark = pytest.mark.unit

SITE_WITH_OUTPUT = {"output": {"dir": "/scratch/$USER/hpcprof"}}


def placed(tmp_path: Path, spec: dict[str, object], site: dict[str, object]) -> Placement:
    environ = {"USER": "me", "HERE": "/data/it's here"}
    return place(make_spec(**spec), make_site(**site), tmp_path, environ)


@pytest.mark.parametrize(
    ("spec", "site", "output_dir"),
    [
        ({}, {}, "SPEC/hpcprof-runs"),
        ({}, SITE_WITH_OUTPUT, "/scratch/me/hpcprof"),
        ({"output_dir": "runs"}, SITE_WITH_OUTPUT, "SPEC/runs"),
        ({"output_dir": "${HERE}/x"}, {}, "/data/it's here/x"),
        ({"output_dir": "/a/../b/$$c"}, {}, "/b/$c"),
    ],
)
def test_output_folder(
    tmp_path: Path, spec: dict[str, object], site: dict[str, object], output_dir: str
) -> None:
    expected = output_dir.replace("SPEC", str(tmp_path))
    assert str(placed(tmp_path, spec, site).output_dir) == expected


def test_first_scratch_folder_that_exists_is_used(tmp_path: Path) -> None:
    (tmp_path / "ps").mkdir()
    environ = {"SCRATCH": "/nonexistent", "PSCRATCH": str(tmp_path / "ps")}
    found = place(make_spec(), make_site(), tmp_path, environ)
    assert found.output_dir == tmp_path / "ps/hpcprof"


def test_training_starts_beside_the_spec_or_where_it_says(tmp_path: Path) -> None:
    assert placed(tmp_path, {}, {}).workdir == tmp_path
    assert placed(tmp_path, {"workdir": "sub"}, {}).workdir == tmp_path / "sub"
    assert placed(tmp_path, {"workdir": "/data"}, {}).workdir == Path("/data")


def test_relative_folder_of_the_spec_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = place(make_spec(), make_site(), Path("sub"), {})
    assert (found.workdir, found.output_dir) == (tmp_path / "sub", tmp_path / "sub/hpcprof-runs")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"output_dir": "$NOWHERE/x"}, r"output_dir: \$NOWHERE/x needs \$NOWHERE, which is not"),
        ({"workdir": "a$/b"}, r"workdir: a\$/b: write \$NAME"),
        ({"output_dir": "a\\b"}, "holds a backslash"),
        ({"python": {"interpreter": "python3"}}, "must be an absolute path"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, spec: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        placed(tmp_path, spec, {})


def test_interpreter_of_the_spec_wins_over_the_sites_over_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site: dict[str, object] = {"python": {"interpreter": "/site/python"}}
    spec: dict[str, object] = {"python": {"interpreter": "/spec/python"}}
    assert placed(tmp_path, spec, site).interpreter == "/spec/python"
    assert placed(tmp_path, {}, site).interpreter == "/site/python"
    assert placed(tmp_path, {}, {}).interpreter == sys.executable
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(EnvironmentLacksError, match=r"python\.interpreter"):
        placed(tmp_path, {}, {})
