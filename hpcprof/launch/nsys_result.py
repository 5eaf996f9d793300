"""What nsys left: brings it into the rank folder and says provisionally what state it is in.

Looks at existence and size only; collect judges the content.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hpcprof.artifacts import manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.nsys_watch import Ending

_GENERATED_RE = re.compile(r"^Generated:\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE)
_AGENT_LOST = "Connection to the Agent lost"
# what stays free in the run folder beside a rescued recording
_MARGIN_BYTES = 2**20


class Result(NamedTuple):
    """Provisional state, its reason in words, and warnings."""

    state: str
    reason: str
    warnings: list[str]


def result(paths: ArtifactPaths, rank: int, ending: Ending, *, on_request: bool) -> Result:
    """Rescue and judge the recording of one rank.

    ``on_request``: recording began only when the training asked for it, so no file can mean that
    it never asked. Raises nothing.
    """
    log = _read(paths.nsys_log(rank))
    report, stream = paths.nsys_report(rank), paths.nsys_stream(rank)
    finished = _generated(log)
    warnings: list[str] = []
    if not _size(report) and not _size(stream):
        # nsys leaves its file in its TMPDIR when the run folder does not take it
        left = next((path for path in finished if _size(path)), ending.stream)
        if left is not None and _size(left):
            problem = _move(left, report if left.suffix == report.suffix else stream)
            if problem:
                warnings.append(problem)
    lost = _AGENT_LOST in log
    if lost:
        warnings.append("nsys lost its agent; the training was not affected")
    if _size(report):
        return Result(manifest.OK, f"nsys report, {_size(report)} bytes", warnings)
    if _size(stream):
        if finished:
            reason = f"raw recording, {_size(stream)} bytes, not imported yet"
            return Result(manifest.OK, reason, warnings)
        # QdstrmImporter 2022.4 refuses such a file; it is kept for one that may not
        reason = f"raw recording, {_size(stream)} bytes, cut off before nsys could finish it"
        return Result(manifest.LOST, reason, warnings)
    if ending.nsys is None:
        return Result(manifest.LOST, "nsys did not end and had to be killed", warnings)
    if on_request and not lost:
        return Result(manifest.EMPTY, "the training never reached the range to record", warnings)
    code = ending.nsys.code
    return Result(manifest.LOST, f"nsys ended with code {code} and left no report", warnings)


def _move(source: Path, target: Path) -> str | None:
    """Move the recording if it fits; the problem in words when it stays where it is."""
    try:
        os.rename(source, target)
        return None
    except OSError:
        pass  # another file system, the usual case
    try:
        space = os.statvfs(target.parent)
        if space.f_bavail * space.f_frsize < _size(source) + _MARGIN_BYTES:
            return f"the recording does not fit into the run folder; it is left at {source}"
        import shutil

        temporary = target.with_name(f".{target.name}.tmp")
        try:
            shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        source.unlink()
    except OSError as error:
        return f"the recording could not be moved from {source}: {error.strerror}"
    return None


def _generated(log: str) -> list[Path]:
    """The files that nsys says it has finished; [] when it was ended before.

    "Generating" alone means nothing: at a time limit it is printed before nsys is killed.
    """
    found = _GENERATED_RE.search(log)
    return [Path(line.strip()) for line in found.group(1).splitlines()] if found else []


def _size(path: Path) -> int:
    """Size in bytes, 0 when there is no such file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
