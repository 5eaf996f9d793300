"""Notices when nsys has written its report, while the training still runs. Judges nothing."""

from __future__ import annotations

import time

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch import nsys_files, processes
from hpcprof.launch.nsys_start import Running

LIMIT_SECONDS = 600.0
_LOOK_SECONDS = 0.25
# an idle nsys with its agent stays below; two seconds in a row, since it also waits for disks
_IDLE_TICKS_PER_SECOND = 2
_IDLE_SECONDS = 2.0


class Writing:
    """From the end of a recording until its report is there."""

    def __init__(self, paths: ArtifactPaths, rank: int, running: Running) -> None:
        """``running``: whose processes are looked at."""
        self._log = paths.nsys_log(rank)
        self._results = (paths.nsys_report(rank), paths.nsys_stream(rank))
        self._mark = running.attempt.mark
        now = time.monotonic()
        self._deadline = now + LIMIT_SECONDS
        self._look_at = now
        self._ticks_at = self._busy_at = now
        self._ticks = 0
        self._log_size = -1
        self._is_said = False

    def has_ended(self) -> bool:
        """True when nsys says so, or does nothing any more beside a report, or time is up."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_SECONDS
        return self._says_so() or self._is_idle(now) or now > self._deadline

    def _says_so(self) -> bool:
        size = nsys_files.size(self._log)
        if size != self._log_size:
            self._log_size = size
            self._is_said = bool(nsys_files.generated(nsys_files.read_log(self._log)))
        return self._is_said

    def _is_idle(self, now: float) -> bool:
        if now - self._ticks_at >= 1.0:
            pids = processes.with_environment(self._mark)
            ticks = sum(processes.cpu_ticks(pid) for pid in pids)
            if ticks - self._ticks > _IDLE_TICKS_PER_SECOND * (now - self._ticks_at):
                self._busy_at = now
            self._ticks, self._ticks_at = ticks, now
        is_there = any(nsys_files.size(path) for path in self._results)
        return is_there and now - self._busy_at >= _IDLE_SECONDS
