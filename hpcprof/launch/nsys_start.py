"""Starts the application under nsys, or finds out that nsys cannot do it here.

Not here: what happens after the application has started (nsys_watch).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from hpcprof.artifacts.window import Window
from hpcprof.launch import processes
from hpcprof.launch.attempt import MARK_VARIABLE, Attempt, Started, shim_argv
from hpcprof.launch.hang_note import HangNote
from hpcprof.launch.node_lock import NodeLock
from hpcprof.launch.nsys_command import Commands
from hpcprof.launch.processes import Fate, Program
from hpcprof.launch.signals import ENDING, SignalInbox

# measured: 0.4 s per start, 5.6 s for the eighth of eight; counted from holding the lock
WATCHDOG_SECONDS = 15.0
# of one rank: both attempts and the wait for the lock; the other ranks wait for this one
START_SECONDS = 40.0
_ATTEMPTS = 2
_POLL_SECONDS = 0.02
# from taking the token to the application's process id: one posix_spawn
_TOKEN_TO_MARK_SECONDS = 10.0

# nsys and its agent die of USR1, and their report with them (2022.4); ignored ones they inherit.
# TERM, INT and QUIT they handle themselves. The shim gives the application the original effect.
NSYS_IGNORES = (
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
)


class Plan(NamedTuple):
    """All that a start needs. ``environ`` is the application's own, with its own TMPDIR."""

    commands: Commands
    window: Window | None  # None: the whole run is recorded, or what a user's own range says
    session: str
    scratch: Path
    state: Path
    log: Path
    command: Sequence[str]
    environ: Mapping[str, str]
    umask: int
    node: str


class Running(NamedTuple):
    """nsys with a started application. ``started`` is None when the shim vanished at once."""

    attempt: Attempt
    nsys_pid: int
    started: Started | None
    argv: Sequence[str]
    session: str
    seconds: float
    deferred: Sequence[int]  # signals that came before there was an application


class StartInterruptedError(Exception):
    """A signal asked us to end before the application had been started."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum} before the application started")
        self.signum = signum


def start(plan: Plan, inbox: SignalInbox) -> tuple[Running | None, list[str]]:
    """Start the application under nsys, in at most two attempts and ``START_SECONDS`` together.

    Returns the running pair, or None when the application has certainly not been started, and
    what went wrong, in words. Raises StartInterruptedError.
    """
    return _Start(plan, inbox).run()


class _Start:
    """The attempts of one rank."""

    def __init__(self, plan: Plan, inbox: SignalInbox) -> None:
        self._plan = plan
        self._inbox = inbox
        self._hang_note = HangNote(plan.scratch)
        self._deadline = time.monotonic() + START_SECONDS
        self._problems: list[str] = []
        self._deferred: list[int] = []
        self._pause = _pause(inbox, self._deferred)

    def run(self) -> tuple[Running | None, list[str]]:
        """Both attempts, as ``start`` says."""
        for number in range(1, _ATTEMPTS + 1):
            try:
                running = self._attempt_locked(number)
            except OSError as error:
                self._problems.append(f"nsys start {number}: {error}")
                continue
            if running is not None:
                self._hang_note.remove()
                return running, self._problems
        return None, self._problems

    def _attempt_locked(self, number: int) -> Running | None:
        if self._is_hopeless(number):
            return None
        left = self._deadline - time.monotonic()
        lock = NodeLock(self._plan.scratch, self._pause, limit_seconds=left)
        if lock.problem:
            self._problems.append(lock.problem)
        try:
            # others have had the lock meanwhile, and perhaps all of our time
            if self._is_hopeless(number):
                return None
            return self._attempt(number)
        finally:
            lock.release()

    def _is_hopeless(self, number: int) -> bool:
        """Whether no attempt is made; the problem has been noted then."""
        why = self._hang_note.found()
        if why is None and time.monotonic() >= self._deadline:
            why = f"the {START_SECONDS:.0f} s for the start of nsys were over"
        if why is None:
            return False
        text = f"nsys start: {why}"
        if text not in self._problems:
            self._problems.append(text)
        self._deadline = 0.0  # the second attempt would be the same
        return True

    def _attempt(self, number: int) -> Running | None:
        plan = self._plan
        # a session of the same name, left by a killed job, blocks the name on the whole node
        name = plan.session if number == 1 else f"{plan.session}-{number}"
        attempt = Attempt(plan.state / f"attempt-{number}")
        began = time.monotonic()
        pid, argv = _spawn(plan, attempt, name, self._inbox)
        limit = min(WATCHDOG_SECONDS, self._deadline - began)
        try:
            why = _wait_for_start(attempt, pid, began + limit, self._pause)
        except StartInterruptedError as interruption:
            if attempt.revoke():
                _end_all(attempt, pid)
                raise
            self._deferred.append(interruption.signum)
            why = None
        if why is not None and attempt.revoke():
            if time.monotonic() >= began + limit:
                self._hang_note.leave()
            _end_all(attempt, pid)
            self._problems.append(f"nsys start {number}: {why}{_log_tail(plan.log)}")
            return None
        started = _wait_for_mark(attempt)
        seconds = time.monotonic() - began
        return Running(attempt, pid, started, argv, name, seconds, tuple(self._deferred))


def _pause(inbox: SignalInbox, deferred: list[int]) -> Callable[[float], None]:
    """A sleep that keeps ordinary signals for the application and stops at those that end it."""

    def pause(seconds: float) -> None:
        received = inbox.wait(seconds)
        if received is None:
            return
        if received.signum in ENDING:
            raise StartInterruptedError(received.signum)
        deferred.append(received.signum)

    return pause


def _spawn(
    plan: Plan, attempt: Attempt, session_name: str, inbox: SignalInbox
) -> tuple[int, list[str]]:
    """Start nsys with its output in the log; returns its process id and its own arguments."""
    argv = plan.commands.run_argv(session_name)
    shim, copies = shim_argv(attempt, plan.environ.get("TMPDIR"), inbox.ignored, plan.command)
    try:
        return spawn_nsys(plan, attempt, [*argv, *shim], inbox), argv
    finally:
        for descriptor in copies:
            os.close(descriptor)


def spawn_nsys(plan: Plan, attempt: Attempt, argv: Sequence[str], inbox: SignalInbox) -> int:
    """Start nsys as our child, its output in the log; returns its process id. Raises OSError."""
    environ = {
        **plan.environ,
        MARK_VARIABLE: str(attempt.folder),
        # one per node and user, not per rank: nsys keeps the lock of its session table in it
        "TMPDIR": str(plan.scratch),
        # unregistered strings are what the C API and the Python package send
        "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0",
        # without it -t mpi can hang when only some ranks are profiled (nsys user guide, 1.9)
        "NSYS_MPI_STORE_TEAMS_PER_RANK": "1",
        # reports of one node keep together although containers have odd host names
        "NSYS_HW_ID": plan.node,
        "NSYS_SYSTEM_ID": plan.node,
    }
    output = _open_log(plan.log)
    try:
        # a Ctrl-C from the terminal reaches nsys through us only: a second one kills it
        program = Program(
            argv, environ, plan.umask, ignore=NSYS_IGNORES, own_group=True, output=output
        )
        return processes.spawn(program, inbox)
    finally:
        os.close(output)


def _open_log(path: Path) -> int:
    """The log, or /dev/null when the run folder takes no more."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _wait_for_start(
    attempt: Attempt, pid: int, deadline: float, pause: Callable[[float], None]
) -> str | None:
    """None when the application has been started, else why not."""
    began = time.monotonic()
    while attempt.started() is None:
        fate = processes.reap(pid)
        if fate is not None:
            return f"nsys ended with code {fate.code} before it started the application"
        now = time.monotonic()
        if now > deadline:
            return f"nsys did not start the application in {now - began:.0f} s"
        pause(_POLL_SECONDS)
    return None


def _wait_for_mark(attempt: Attempt) -> Started | None:
    deadline = time.monotonic() + _TOKEN_TO_MARK_SECONDS
    while time.monotonic() < deadline:
        started = attempt.started()
        if started is not None:
            return started
        time.sleep(_POLL_SECONDS)
    return None


def _end_all(attempt: Attempt, nsys_pid: int) -> None:
    """End nsys, its agent (a daemon of its own) and a shim that came too late."""
    processes.end({nsys_pid, *processes.with_environment(attempt.mark)}, grace_seconds=2.0)
    for _ in range(100):
        if processes.reap(nsys_pid) is not None:
            return
        time.sleep(_POLL_SECONDS)


def _log_tail(log: Path) -> str:
    """The last line nsys printed, for the manifest."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"; it said: {lines[-1][-200:]}" if lines else ""


def unstarted_fate(interruption: StartInterruptedError) -> Fate:
    """Fate of an application that a signal ended before it existed."""
    return Fate(128 + interruption.signum, interruption.signum)
