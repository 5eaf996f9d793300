"""Finding nsys, importing and exporting: with programs that behave as nsys does, well and badly."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import EnvironmentLacksError, InputError
from hpcprof.readers.nsys_files import exported, find_recording
from hpcprof.readers.nsys_tools import NsysTools, find_tools

pytestmark = pytest.mark.unit

# last argument is the report; the output is named by --output=
EXPORT = """
for a; do case $a in --output=*) out=${a#--output=};; esac; last=$a; done
printf 'exported from %s' "$(cat "$last")" > "$out"
"""
# as the real importer: refuses to overwrite
IMPORT = """
[ -e "$4" ] && { echo "file exists"; exit 1; }
printf 'imported %s' "$(cat "$2")" > "$4"
"""


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tools(tmp_path: Path) -> NsysTools:
    nsys = program(tmp_path / "nsys" / "target-linux-x64" / "nsys", EXPORT)
    program(tmp_path / "nsys" / "host-linux-x64" / "QdstrmImporter", IMPORT)
    found = find_tools(str(nsys))
    assert found is not None
    return found


@pytest.fixture
def paths(tmp_path: Path) -> ArtifactPaths:
    made = ArtifactPaths(tmp_path / "a run's #1 folder")
    made.rank_folder(3).mkdir(parents=True)
    return made


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def content(recording: Path, workdir: Path, tools: NsysTools | None) -> str:
    with exported(recording, 3, workdir, tools) as database:
        text = database.read_text()
        mode = stat.S_IMODE(database.parent.stat().st_mode)
        assert database.parent == recording.parent or mode == 0o700, "holds the environment"
    return text


def test_the_best_recording_is_taken_and_empty_files_are_none(paths: ArtifactPaths) -> None:
    assert find_recording(paths, 3) is None
    paths.nsys_sqlite(3).write_text("s")
    assert find_recording(paths, 3) == paths.nsys_sqlite(3)
    paths.nsys_stream(3).write_text("q")
    assert find_recording(paths, 3) == paths.nsys_stream(3)
    paths.nsys_report(3).touch()
    assert find_recording(paths, 3) == paths.nsys_stream(3)
    paths.nsys_report(3).write_text("r")
    assert find_recording(paths, 3) == paths.nsys_report(3)


def test_a_report_is_exported_afresh_and_the_export_deleted(
    paths: ArtifactPaths, workdir: Path, tools: NsysTools
) -> None:
    paths.nsys_report(3).write_text("report")
    paths.nsys_sqlite(3).write_text("stale")
    assert content(paths.nsys_report(3), workdir, tools) == "exported from report"
    assert list(workdir.iterdir()) == []
    assert paths.nsys_sqlite(3).read_text() == "stale"


def test_a_stream_is_imported_first(paths: ArtifactPaths, workdir: Path, tools: NsysTools) -> None:
    paths.nsys_stream(3).write_text("stream")
    got = content(paths.nsys_stream(3), workdir, tools)
    assert got == "exported from imported stream"
    assert [path.name for path in paths.rank_folder(3).iterdir()] == ["rank.qdstrm"]


def test_the_export_is_deleted_also_when_reading_it_fails(
    paths: ArtifactPaths, workdir: Path, tools: NsysTools
) -> None:
    paths.nsys_report(3).write_text("report")
    with pytest.raises(KeyError), exported(paths.nsys_report(3), 3, workdir, tools):
        raise KeyError
    assert list(workdir.iterdir()) == []


def test_what_a_killed_collect_left_is_removed(
    paths: ArtifactPaths, workdir: Path, tools: NsysTools
) -> None:
    (workdir / "nsys-00003-dead").mkdir()
    (workdir / "nsys-00003-dead" / "rank.sqlite").write_text("the environment")
    (workdir / "nsys-00004-alive").mkdir()
    paths.nsys_report(3).write_text("report")
    content(paths.nsys_report(3), workdir, tools)
    assert [path.name for path in workdir.iterdir()] == ["nsys-00004-alive"]


def test_without_nsys_a_newer_export_is_believed_and_an_older_one_not(
    paths: ArtifactPaths, workdir: Path
) -> None:
    report, export = paths.nsys_report(3), paths.nsys_sqlite(3)
    report.write_text("report")
    with pytest.raises(EnvironmentLacksError, match="Run collect where the job ran"):
        content(report, workdir, None)
    export.write_text("export")
    os.utime(report, (1_000, 1_000))
    assert content(report, workdir, None) == "export"
    os.utime(export, (999, 999))
    with pytest.raises(InputError, match=r"rank\.sqlite is older than .*rank\.nsys-rep"):
        content(report, workdir, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'Qdstrm file is incomplete or invalid'; exit 1", "killed while recording"),
        ("printf '50%%\\rfailed: bad magic\\n'; exit 1", "failed: bad magic. A report needs"),
        ("exit 0", "it said nothing"),
        (f"{EXPORT.strip()}; exit 3", "could not read"),
    ],
)
def test_failures_of_nsys_are_told_in_words(
    paths: ArtifactPaths, workdir: Path, tmp_path: Path, body: str, message: str
) -> None:
    nsys = program(tmp_path / "bad" / "nsys", body)
    paths.nsys_report(3).write_text("report")
    with pytest.raises(InputError, match=message) as caught:
        content(paths.nsys_report(3), workdir, NsysTools(nsys, None))
    assert str(paths.nsys_report(3)) in str(caught.value)
    assert list(workdir.iterdir()) == []


def test_an_nsys_that_hangs_is_given_up(
    paths: ArtifactPaths, workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.readers.nsys_tools._SECONDS_AT_LEAST", 0.2)
    nsys = program(tmp_path / "slow" / "nsys", "exec sleep 30")
    paths.nsys_report(3).write_text("report")
    with pytest.raises(InputError, match=r"nsys did not read .* within 0 s"):
        content(paths.nsys_report(3), workdir, NsysTools(nsys, None))


def test_a_stream_without_importer_says_what_is_missing(
    paths: ArtifactPaths, workdir: Path, tools: NsysTools
) -> None:
    paths.nsys_stream(3).write_text("stream")
    with pytest.raises(InputError, match=r"the importer .*QdstrmImporter.* is not beside"):
        content(paths.nsys_stream(3), workdir, NsysTools(tools.nsys, None))


def test_nsys_is_found_by_setting_path_and_variable(tmp_path: Path) -> None:
    nsys = program(tmp_path / "real" / "target-linux-x64" / "nsys", EXPORT)
    importer = program(tmp_path / "real" / "host-linux-x64" / "QdstrmImporter", IMPORT)
    link = tmp_path / "bin" / "nsys"
    link.parent.mkdir()
    link.symlink_to(nsys)
    expected = NsysTools(link, importer)
    assert find_tools(str(link), {}) == expected
    assert find_tools(str(link.parent), {}) == expected
    assert find_tools(None, {"PATH": str(link.parent)}) == expected
    assert find_tools(None, {"PATH": "", "CUDA_HOME": str(tmp_path)}) == expected
    assert find_tools(str(tmp_path / "nowhere"), {"PATH": str(link.parent)}) is None
