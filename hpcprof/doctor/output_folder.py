"""Can run folders be made, and do the compute nodes see the same files?"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcprof.doctor.registry import LOGIN, NODE, check
from hpcprof.doctor.row import Row, fail, ok, warn
from hpcprof.doctor.space import free_text, is_scarce
from hpcprof.doctor.subject import Subject

_NAME = "output folder"
# the clients of a network file system may take seconds to see a new file
_VISIBLE_SECONDS = 5.0
_LITTLE_BYTES = 2 * 10**9
_CHOOSE = "Name a folder that you may write to and all nodes see as output_dir in the job spec."


@check(_NAME, where=LOGIN, lane="output", instead=_CHOOSE)
def from_here(subject: Subject) -> Iterator[Row]:
    """Can run folders be made from here?"""
    if not subject.request.output_dir:
        return
    folder = existing(Path(subject.request.output_dir))
    yield judge_folder(folder, Path(subject.request.output_dir))


@check(_NAME, where=NODE, lane="output", instead=_CHOOSE)
def from_the_node(subject: Subject) -> Iterator[Row]:
    """Does a compute node see and write the same folder?"""
    if not subject.on_node or not subject.request.probe:
        return
    probe = Path(subject.request.probe)
    if not _appears(probe, subject.request.token):
        what = f"{probe.parent} is not the folder that the login node sees"
        yield fail(_NAME, what, _CHOOSE)
        return
    yield judge_folder(probe.parent, Path(subject.request.output_dir))


def existing(folder: Path) -> Path:
    """``folder`` itself, or the nearest one above that is there."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))


def judge_folder(folder: Path, wanted: Path) -> Row:
    """Row about writing into ``folder``, in or above which the run folders will be."""
    name = folder / f".hpcprof-doctor-{os.uname().nodename}-{os.getpid()}"
    try:
        with open(name, "xb") as stream:
            stream.write(b"x" * 4096)
            os.fsync(stream.fileno())
    except OSError as error:
        return fail(_NAME, f"{folder}: {error.strerror}", _CHOOSE)
    finally:
        remove(name)
    free = free_text(folder)
    to_be_made = "" if folder == wanted else "; it will be made by hpcprof submit"
    if is_scarce(folder, _LITTLE_BYTES):
        advice = "Make room, or name another output_dir: reports of nsys take megabytes a rank."
        return warn(_NAME, f"{wanted}: {free}", advice)
    return ok(_NAME, f"{wanted}, {free}{to_be_made}")


def leave_probe(folder: Path, token: str) -> Path:
    """Leave a file for the compute nodes to find. Raises OSError, and then leaves none."""
    probe = existing(folder) / f".hpcprof-doctor-{token}"
    try:
        probe.write_text(token, encoding="ascii")
    except OSError:
        remove(probe)  # over the quota: the file is made, but stays empty
        raise
    return probe


def remove(file: Path) -> None:
    """Delete a file of ours, if it is there and that can be done (not in a read-only folder)."""
    with contextlib.suppress(OSError):
        file.unlink()


def _appears(probe: Path, token: str) -> bool:
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while True:
        try:
            if probe.read_text(encoding="ascii") == token:
                return True
        except (OSError, UnicodeDecodeError):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
