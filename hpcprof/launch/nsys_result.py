"""What nsys left: brings it into the rank folder and says provisionally what state it is in.

Looks at existence and size only; collect judges the content.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hpcprof.artifacts import manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.nsys_files import generated, read_log, size
from hpcprof.launch.nsys_watch import Ending

_AGENT_LOST = "Connection to the Agent lost"
# what stays free in the run folder beside a rescued recording
_MARGIN_BYTES = 2**20


class Result(NamedTuple):
    """Provisional state, its reason in words, and warnings."""

    state: str
    reason: str
    warnings: list[str]


class Course(NamedTuple):
    """What is known of a recording beside its files, each in words, None when it did not happen.

    ``never_began``: the training did not come to what should be recorded. ``stopped``: it ended
    before its time. ``problem``: nsys could not begin or end it.
    """

    never_began: str | None = None
    stopped: str | None = None
    problem: str | None = None


def result(paths: ArtifactPaths, rank: int, ending: Ending, course: Course) -> Result:
    """Rescue and judge the recording of one rank. Raises nothing."""
    log = read_log(paths.nsys_log(rank))
    report, stream = paths.nsys_report(rank), paths.nsys_stream(rank)
    finished = generated(log)
    warnings: list[str] = []
    if not size(report) and not size(stream):
        # nsys leaves its file in its TMPDIR when the run folder does not take it
        left = next((path for path in finished if size(path)), ending.stream)
        if left is not None and size(left):
            problem = _move(left, report if left.suffix == report.suffix else stream)
            if problem:
                warnings.append(problem)
    lost = _AGENT_LOST in log
    if lost:
        warnings.append("nsys lost its agent; the training was not affected")
    state, reason = _judge(size(report), size(stream), is_finished=bool(finished))
    if state == manifest.OK and course.stopped:
        state, reason = manifest.PARTIAL, f"{course.stopped}; {reason}"
    if not reason:
        state, reason = _why_nothing(ending, course, is_agent_lost=lost)
    return Result(state, reason, warnings)


def _judge(report_bytes: int, stream_bytes: int, *, is_finished: bool) -> tuple[str, str]:
    """State and reason of what is there; no reason when nothing is."""
    if report_bytes:
        return manifest.OK, f"nsys report, {report_bytes} bytes"
    if stream_bytes and is_finished:
        return manifest.OK, f"raw recording, {stream_bytes} bytes, not imported yet"
    if stream_bytes:
        # QdstrmImporter 2022.4 refuses such a file; it is kept for one that may not
        why = f"raw recording, {stream_bytes} bytes, cut off before nsys could finish it"
        return manifest.LOST, why
    return manifest.LOST, ""


def _why_nothing(ending: Ending, course: Course, *, is_agent_lost: bool) -> tuple[str, str]:
    if ending.nsys is None:
        return manifest.LOST, "nsys did not end and had to be killed"
    if course.never_began and not is_agent_lost:
        return manifest.EMPTY, course.never_began
    if course.problem:
        return manifest.LOST, course.problem
    return manifest.LOST, f"nsys ended with code {ending.nsys.code} and left no report"


def _move(source: Path, target: Path) -> str | None:
    """Move the recording if it fits; the problem in words when it stays where it is."""
    try:
        os.rename(source, target)
        return None
    except OSError:
        pass  # another file system, the usual case
    try:
        space = os.statvfs(target.parent)
        if space.f_bavail * space.f_frsize < size(source) + _MARGIN_BYTES:
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
