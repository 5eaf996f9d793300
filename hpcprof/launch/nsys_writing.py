"""Notices when nsys has written its report, while the training still runs. Judges nothing."""

from __future__ import annotations

import time

from hpcprof.artifacts import node_time
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch import nsys_files, processes
from hpcprof.launch.nsys_start import Running

LIMIT_SECONDS = 600.0
_LOOK_SECONDS = 0.25
# nsys profile has written the report of a range long before it says so, which is when the training
# ends (2022.4): then it counts that its processes rest. An idle nsys with its agent stays below two
# ticks; two seconds in a row, since it also waits for disks
_TICKS_SECONDS = 1.0
_IDLE_TICKS_PER_SECOND = 2
_IDLE_SECONDS = 2.0
_IDLE_WITHOUT_REPORT_SECONDS = 10.0  # it stays in nsys's TMPDIR when the run folder is full


class Writing:
    """From the end of a recording until its report is there.

    ``until_ns``: when nsys was last seen at work on it, CLOCK_MONOTONIC ns.
    """

    def __init__(self, paths: ArtifactPaths, rank: int, running: Running) -> None:
        """``running``: whose processes are looked at."""
        self.until_ns = node_time.monotonic_ns()
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
        """True when nsys says so, or does nothing any more, or time is up."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_SECONDS
        if self._is_idle(now):
            return True
        if self._says_so() or now > self._deadline:
            self.until_ns = node_time.monotonic_ns()
            return True
        return False

    def _says_so(self) -> bool:
        size = nsys_files.size(self._log)
        if size != self._log_size:
            self._log_size = size
            self._is_said = bool(nsys_files.generated(nsys_files.read_log(self._log)))
        return self._is_said

    def _is_idle(self, now: float) -> bool:
        if now - self._ticks_at >= _TICKS_SECONDS:
            pids = processes.with_environment(self._mark)
            ticks = sum(processes.cpu_ticks(pid) for pid in pids)
            if ticks - self._ticks > _IDLE_TICKS_PER_SECOND * (now - self._ticks_at):
                self._busy_at, self.until_ns = now, node_time.monotonic_ns()
            self._ticks, self._ticks_at = ticks, now
        is_there = any(nsys_files.size(path) for path in self._results)
        enough = _IDLE_SECONDS if is_there else _IDLE_WITHOUT_REPORT_SECONDS
        return now - self._busy_at >= enough
