"""Watches the application and nsys until both have ended, and passes signals on.

Does not look at the report (nsys_result), and does not know what is recorded when (nsys_recording).
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Callable, NamedTuple

from hpcprof.launch import processes
from hpcprof.launch.nsys_recording import OVER, STOPPING, Recording
from hpcprof.launch.nsys_start import Running
from hpcprof.launch.processes import Fate
from hpcprof.launch.signals import SignalInbox

# after the application nsys writes and imports its report, which takes CPU time; one whose
# helper was killed waits for ever instead
STALL_SECONDS = 60.0
_STALL_TICKS_PER_SECOND = 2  # an idle nsys with its agent stays below
_AFTER_TERM_SECONDS = 20.0
_PATIENCE_SECONDS = 1.0
_ORPHAN_POLL_SECONDS = 0.05
# between a signal to the whole step and the shim's mark that it was among those who got it
_WITNESS_SECONDS = 0.2
# the same for nsys, which passes a signal on in some ms; one that hangs never does
PASSED_ON_SECONDS = 2.0

_TO_NSYS = (signal.SIGTERM, signal.SIGINT)
# so many of them after the application's end mean that somebody does not want to wait
_MAX_IMPATIENCE = 2


class Ending(NamedTuple):
    """How application and nsys ended. ``nsys`` is None when it had to be killed."""

    application: Fate
    nsys: Fate | None
    stream: Path | None  # where nsys recorded to, in its TMPDIR
    warnings: list[str]


class Watch:
    """The time from the application's start to the end of nsys."""

    def __init__(
        self,
        running: Running,
        inbox: SignalInbox,
        recording: Recording,
        on_application_end: Callable[[Fate], None],
    ) -> None:
        """``on_application_end`` is told once, while nsys may still be writing its report."""
        self._running = running
        self._recording = recording
        self._on_application_end = on_application_end
        self._inbox = inbox
        self._application: Fate | None = None
        self._nsys: Fate | None = None
        self._warnings: list[str] = []
        self._nsys_signalled = False
        self._impatience = 0
        self._ticks = 0
        self._ticks_at = self._busy_at = time.monotonic()
        self._term_sent_at: float | None = None

    def until_end(self) -> Ending:
        """Wait for the application, then for nsys. Never ends a running application."""
        for signum in self._running.deferred:
            self._pass_on(signum)
        while not self._is_over():
            received = self._inbox.wait(self._interval())
            if received is not None:
                self._pass_on(received.signum)
            self._look()
            if self._application is not None and self._nsys is None and not self._patient():
                break
        self._warnings += self._running.attempt.notes()
        # an agent whose command line was killed would stay on the node
        leftover = set(processes.with_environment(self._running.attempt.mark))
        processes.end(leftover - {*(self._running.started or ())}, grace_seconds=2.0)
        self._follow_recording()
        assert self._application is not None
        return Ending(self._application, self._nsys, self._recording.stream, self._warnings)

    def _is_over(self) -> bool:
        settled = self._recording.is_settled or self._recording.is_lost
        return self._application is not None and self._nsys is not None and settled

    def _interval(self) -> float:
        # when nsys is gone nothing wakes us at the application's end
        if self._nsys is not None:
            return _ORPHAN_POLL_SECONDS
        return self._recording.interval_seconds

    def _look(self) -> None:
        """Take notice of whatever has ended."""
        if self._nsys is None:
            self._nsys = processes.reap(self._running.nsys_pid)
            if self._nsys is not None and self._running.attempt.fate() is None:
                self._nsys_ended_first()
        if self._application is None:
            self._application = self._running.attempt.fate()
            if self._application is not None:
                self._busy_at = time.monotonic()
                self._on_application_end(self._application)
        if self._application is None and self._nsys is not None:
            self._application = self._fate_without_shim()
        self._follow_recording()

    def _follow_recording(self) -> None:
        if self._recording.is_lost:
            return
        try:
            self._recording.look(
                application_ended=self._application is not None, nsys_ended=self._nsys is not None
            )
        except (
            Exception
        ) as error:  # signals and exit code of the training are still to be passed on
            self._recording.is_lost = True
            self._warnings.append(f"the recording was left to itself: {error!r}")

    def _nsys_ended_first(self) -> None:
        if self._recording.phase in (STOPPING, OVER):
            return
        # nsys launch killed (2022.4): its agent goes on, and nsys stop writes the report all the
        # same; only a recording that is still open at the training's end is lost
        goes_on = self._recording.outlives_command_line
        then = "its agent goes on" if goes_on else "it went on unrecorded"
        self._warnings.append(f"nsys ended before the training; {then}")

    def _fate_without_shim(self) -> Fate | None:
        """When nsys is gone: None while the application or its shim still runs."""
        started = self._running.started
        pids = [pid for pid in started or () if pid]
        if any(processes.start_ticks(pid) is not None for pid in pids):
            return None
        written = self._running.attempt.fate()  # between our last look and the shim's end
        if written is not None:
            return written
        assert self._nsys is not None
        if not self._running.attempt.folder.is_dir():
            self._warnings.append(
                "how the application ended is only known from nsys, which returned "
                f"{self._nsys.code}: {self._running.attempt.folder} has been removed"
            )
            return self._nsys
        self._warnings.append(
            "how the application ended is not known, because the process that waited for it was "
            f"killed; nsys returned {self._nsys.code}"
        )
        return self._nsys if self._nsys.code else Fate(128 + signal.SIGKILL)

    def _pass_on(self, signum: int) -> None:
        """Deliver a signal to the application exactly once.

        TERM and INT go to nsys, which passes them on and writes the report while the application
        cleans up. Only once: a second one ends nsys before the report is written. Where nsys does
        not pass it on in time, the application gets it from us. Slurm signals
        every process of a step with some plug-ins and the first with others; the shim, which sits
        beside the application, tells which it was.
        """
        if self._is_witnessed(signum, _WITNESS_SECONDS):
            if signum in _TO_NSYS and not self._nsys_signalled:
                self._nsys_signalled = True
                # nsys had it too, and passes its own on: that mark is not for the next signal
                self._is_witnessed(signum, _WITNESS_SECONDS)
            return
        if self._application is None and signum in _TO_NSYS and not self._nsys_signalled:
            self._nsys_signalled = True
            if self._nsys is None and processes.send(self._running.nsys_pid, signum):
                self._recording.interrupted(signum)
                if self._is_witnessed(signum, PASSED_ON_SECONDS):
                    return
        if self._application is not None:
            self._impatience += signum in _TO_NSYS
            if self._impatience >= _MAX_IMPATIENCE:
                self._recording.give_up()
        elif self._running.started is not None and self._running.attempt.fate() is None:
            processes.send(self._running.started.application_pid, signum)

    def _is_witnessed(self, signum: int, seconds: float) -> bool:
        """Wait for the shim's mark that the application has got the signal, at most ``seconds``."""
        attempt = self._running.attempt
        deadline = time.monotonic() + seconds
        while not attempt.take_witness(signum):
            if time.monotonic() > deadline:
                return False
            if attempt.fate() is not None:
                return attempt.take_witness(signum)
            time.sleep(0.01)
        return True

    def _patient(self) -> bool:
        """False when nsys, alone after the application's end, has been ended by force.

        It is given as long as it works. When it does nothing any more, or at the second TERM that
        reaches us here, it is first asked to finish, which makes it write what it has.
        """
        now = time.monotonic()
        if now - self._ticks_at < _PATIENCE_SECONDS:
            return True
        pids = {self._running.nsys_pid, *processes.with_environment(self._running.attempt.mark)}
        ticks = sum(processes.cpu_ticks(pid) for pid in pids)
        if ticks - self._ticks > _STALL_TICKS_PER_SECOND * (now - self._ticks_at):
            self._busy_at = now
        self._ticks, self._ticks_at = ticks, now
        if self._term_sent_at is None:
            if now - self._busy_at > STALL_SECONDS or self._impatience >= _MAX_IMPATIENCE:
                self._warnings.append("nsys did not end by itself after the application")
                processes.send(self._running.nsys_pid, signal.SIGTERM)
                self._term_sent_at = self._busy_at = now
            return True
        if now - max(self._term_sent_at, self._busy_at) < _AFTER_TERM_SECONDS:
            return True
        processes.end(pids, grace_seconds=1.0)
        processes.reap(self._running.nsys_pid)
        self._warnings.append("nsys had to be killed")
        return False
