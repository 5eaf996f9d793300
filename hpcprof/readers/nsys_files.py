"""From what nsys left in a rank's folder to an SQLite export that can be read, and then deleted.

Never writes into the rank's folder, and never believes an export that is older than the report.
An export contains the whole environment of the training, so it does not outlive the reading.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import EnvironmentLacksError, InputError
from hpcprof.readers.nsys_tools import NsysTools


def find_recording(paths: ArtifactPaths, rank: int) -> Path | None:
    """The best of what is there: report, else raw stream, else a foreign export; None if nothing.

    Empty files count as absent.
    """
    for path in (paths.nsys_report(rank), paths.nsys_stream(rank), paths.nsys_sqlite(rank)):
        if path.is_file() and path.stat().st_size:
            return path
    return None


@contextmanager
def exported(recording: Path, rank: int, workdir: Path, tools: NsysTools | None) -> Iterator[Path]:
    """An SQLite export of ``recording``, deleted afterwards unless it is the recording itself.

    ``workdir`` must exist; what a killed collect left there of the same rank is removed.
    Raises InputError (cannot be read) or EnvironmentLacksError (no nsys on this machine).
    """
    prefix = f"nsys-{rank:05d}-"
    for leftover in workdir.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if recording.suffix == ".sqlite":
        yield recording
        return
    if tools is None:
        yield _older_export(recording)
        return
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=workdir))
    try:
        report = recording
        if recording.suffix == ".qdstrm":
            report = folder / "rank.nsys-rep"
            tools.import_stream(recording, report)
        database = folder / "rank.sqlite"
        tools.export(report, database)
        yield database
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _older_export(recording: Path) -> Path:
    """An export somebody made earlier, for a machine without nsys. Raises if there is none."""
    export = recording.with_suffix(".sqlite")
    if not export.is_file():
        raise EnvironmentLacksError(
            f"{recording} needs nsys, which is not on this machine. Run collect where the "
            "job ran or on a login node with nsys loaded, or name it with the setting nsys_path."
        )
    if export.stat().st_mtime < recording.stat().st_mtime:
        raise InputError(
            f"{export} is older than {recording} and not believed. Run collect on a machine with "
            "nsys."
        )
    return export
