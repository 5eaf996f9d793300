"""``nsys start`` and ``nsys stop``, run beside us: whoever waits for signals must not wait here."""

from __future__ import annotations

import signal
import time
from typing import Sequence

from hpcprof.artifacts import node_time
from hpcprof.launch import processes
from hpcprof.launch.attempt import Attempt
from hpcprof.launch.nsys_start import Plan, spawn_nsys
from hpcprof.launch.nsys_writing import Writing
from hpcprof.launch.signals import SignalInbox

STARTS = "nsys starts"
STOPS = "nsys stops and writes its report"
# the first range in a report begins up to 5 ms before the end of nsys start, on a busy machine also
# after it (2022.4): the training's own threads have to hear of it
_SETTLING_NS = 100_000_000

_KILL_AFTER_SECONDS = 2.0
_TICKS_SECONDS = 1.0
_IDLE_TICKS_PER_SECOND = 2  # an idle nsys with its agent stays below


class Command:
    """One short command of nsys. ``problem`` says what was wrong with it once it has ended."""

    def __init__(
        self,
        plan: Plan,
        attempt: Attempt,
        argv: Sequence[str],
        inbox: SignalInbox,
        *,
        limit_seconds: float,
    ) -> None:
        """Start it. Past ``limit_seconds`` it is ended. Raises OSError when fork fails."""
        self.problem: str | None = None
        self._name = " ".join(argv[:2]).rpartition("/")[2]
        self._began = time.monotonic()
        self._limit_at = self._deadline = self._began + limit_seconds
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        self._mark = attempt.mark
        self._ticks = 0
        self._ticks_at = 0.0
        self._pid = spawn_nsys(plan, attempt, argv, inbox)

    def has_ended(self) -> bool:
        """Look once; does not wait. True also when it is stuck in the kernel and cannot end."""
        fate = processes.reap(self._pid)
        if fate is not None:
            if fate.code and self.problem is None:
                self.problem = f"{self._name} ended with code {fate.code}"
            return True
        if time.monotonic() > self._deadline:
            if not self._signals:
                return True
            if self.problem is None:
                seconds = time.monotonic() - self._began
                self.problem = f"{self._name} did not end in {seconds:.0f} s and was ended"
            processes.send(self._pid, self._signals.pop(0))
            self._deadline = time.monotonic() + _KILL_AFTER_SECONDS
        return False

    def expect_work(self, idle_seconds: float) -> None:
        """From now on it is ended, too, when nsys does nothing for ``idle_seconds``."""
        now = time.monotonic()
        if now - self._ticks_at < _TICKS_SECONDS or len(self._signals) < 2:
            return
        pids = processes.with_environment(self._mark)
        ticks = sum(processes.cpu_ticks(pid) for pid in pids)
        if ticks - self._ticks > _IDLE_TICKS_PER_SECOND * (now - self._ticks_at):
            self._deadline = self._limit_at
        else:
            self._deadline = min(self._deadline, now + idle_seconds)
        self._ticks, self._ticks_at = ticks, now

    def give_up(self) -> None:
        """End it at the next looks."""
        self._deadline = min(self._deadline, time.monotonic())


class Work:
    """What nsys does in the time of the training: from the word for it to its last deed.

    Steps in that time are not compared with others. ``problem`` is final once it has ended.
    """

    def __init__(
        self, why: str, since_ns: int, command: Command | None, writing: Writing | None
    ) -> None:
        """``why`` is STARTS or STOPS; after ``command`` comes ``writing``, and either may lack."""
        self.problem: str | None = None
        self._why = why
        self._since_ns = self._until_ns = since_ns
        self._command = command
        self._writing = writing

    def has_ended(self, *, nsys_ended: bool) -> bool:
        """Look once; does not wait."""
        if self._command is not None:
            if not self._command.has_ended():
                return False
            self.problem, self._command = self._command.problem, None
        if self.problem is None and self._writing is not None and not nsys_ended:
            if not self._writing.has_ended():
                return False
            self._until_ns = self._writing.until_ns
        else:
            self._until_ns = node_time.monotonic_ns()
        return True

    def expect_work(self, idle_seconds: float) -> None:
        """Do not wait longer than that for a command that does nothing."""
        if self._command is not None:
            self._command.expect_work(idle_seconds)

    def busy(self) -> list[object]:
        """Entry of the manifest's ``profiler_busy``, once it has ended."""
        settling_ns = _SETTLING_NS if self._why == STARTS else 0
        return [self._since_ns, max(self._since_ns, self._until_ns + settling_ns), self._why]

    def give_up(self) -> None:
        """End the command if it still runs."""
        if self._command is not None:
            self._command.give_up()
