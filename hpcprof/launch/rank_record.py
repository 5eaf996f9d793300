"""``manifest.json`` of the rank that is run here: claimed at the start, completed at the end.

The disk may fill up in between, so space for the final manifest is kept from the start.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Mapping

import hpcprof
from hpcprof.artifacts import atomic, manifest, node_time
from hpcprof.artifacts.paths import RUN_FOLDER_MODE, ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.launch.processes import Fate

_RESERVE_BYTES = 16 * 1024
# what the final manifest may grow to; the rest of the reserve is for argv and the fixed fields
_MAX_WARNINGS_BYTES = 8 * 1024


class AlreadyRecordedError(Exception):
    """The rank folder holds the recording of another start."""


class RankRecord:
    """The manifest of one rank while it runs. ``warnings`` grow, ``profiler`` is filled in.

    ``recorder`` is our own, of NVTX ranges.

    ``state`` None: not known yet. ``so_far`` tells it with its reason while nsys records.
    """

    def __init__(self, paths: ArtifactPaths, identity: RankEnv, content: dict[str, Any]) -> None:
        self.paths = paths
        self.identity = identity
        self.warnings: list[str] = []
        self.profiler: dict[str, Any] = {"name": "none"}
        self.recorder: dict[str, Any] = {"name": "none"}
        self.state: str | None = manifest.NOT_PROFILED
        self.state_reason = "no profiler was asked for"
        self.so_far: Callable[[], tuple[str | None, str]] | None = None
        self.application_pid: int | None = None
        self._content = content

    def application_ended(self, fate: Fate) -> None:
        """Write down how the application ended, while its profiler is still at work.

        Slurm may kill us before the report is written: the death of a rank ends the whole step.
        """
        self.update(ended=_now(), exit_code=fate.code)

    def not_profiled(self, why: str) -> None:
        """The training runs without a profiler; written down at once, for the case of a kill."""
        self.state, self.state_reason = manifest.NOT_PROFILED, why
        self.update()

    def update(self, **fields: Any) -> None:
        """Write down all that is known so far, and these fields, for the case of a kill."""
        if self.so_far is not None:
            self.state, self.state_reason = self.so_far()
        self._content.update(self._known(), **fields)
        with contextlib.suppress(OSError):  # the disk is full: complete() has space reserved
            atomic.write_json(self.paths.manifest(self.identity.rank), self._content)

    def complete(self, fate: Fate) -> None:
        """Write the final manifest. Raises OSError when even the reserve did not suffice."""
        if self._content["ended"] is None:
            self._content.update(ended=_now())
        self._content.update(self._known(), exit_code=fate.code)
        rank = self.identity.rank
        self.paths.manifest_reserve(rank).unlink(missing_ok=True)
        atomic.write_json(self.paths.manifest(rank), self._content)

    def _known(self) -> dict[str, Any]:
        return {
            "pid": self.application_pid,
            "state": self.state,
            "state_reason": self.state_reason,
            "profiler": self.profiler,
            "recorder": self.recorder,
            "warnings": _within(self.warnings, _MAX_WARNINGS_BYTES),
        }


def claim(
    paths: ArtifactPaths, identity: RankEnv, argv: list[str], environ: Mapping[str, str]
) -> RankRecord:
    """Make the rank folder ours and write its first manifest.

    Raises AlreadyRecordedError when another start has it (a second srun in one job), OSError when
    the run folder cannot be written; in both cases nothing of ours is left behind.
    """
    rank = identity.rank
    folder = paths.rank_folder(rank)
    os.makedirs(folder, RUN_FOLDER_MODE, exist_ok=True)
    kept = (paths.manifest(rank), paths.nsys_report(rank), paths.nsys_stream(rank))
    if any(path.exists() for path in kept):  # nsys would leave its own elsewhere, beside that one
        raise AlreadyRecordedError(f"{folder} already holds the recording of another start")
    reserve = paths.manifest_reserve(rank)
    try:
        # exclusive creation is what two starts at the same moment cannot both win
        descriptor = os.open(reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyRecordedError(f"{folder} is being recorded by another start") from None
    content = manifest.new_manifest(identity._asdict(), argv)
    content.update(
        started=_now(),
        launcher_pid=os.getpid(),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        hpcprof_version=hpcprof.__version__,
    )
    try:
        with open(descriptor, "wb") as stream:
            # real bytes: a file system that compresses or leaves holes would keep nothing free;
            # without fsync, since space is taken at write (ext4, xfs, Lustre) or at close (NFS)
            stream.write(os.urandom(_RESERVE_BYTES))
        atomic.write_json(paths.manifest(rank), content)
    except OSError:
        reserve.unlink(missing_ok=True)
        raise
    return RankRecord(paths, identity, content)


def _now() -> dict[str, int]:
    return {"realtime_ns": node_time.realtime_ns(), "monotonic_ns": node_time.monotonic_ns()}


def _within(lines: list[str], limit_bytes: int) -> list[str]:
    """The first lines that fit, and a last one that counts the others."""
    kept: list[str] = []
    used = 0
    for line in lines:
        used += len(line.encode()) + 8
        if used > limit_bytes:
            return [*kept, f"{len(lines) - len(kept)} further warnings were left out"]
        kept.append(line)
    return kept
