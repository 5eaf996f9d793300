"""Runs the part of an agent that uses MPI in a child, as MPI may hang, abort or kill its process.

The parent watches: it ends a child that does not start or end in time, and can go on without MPI.
"""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import time
from typing import Callable, Mapping

from hpcprof.launch.agent.ending import LAST_SECONDS, SECOND_AFTER_SECONDS
from hpcprof.launch.processes import Fate, reap, send
from hpcprof.launch.signals import ENDING, SignalInbox

START_SECONDS = 20.0
# set by srun --mpi=pmix|pmi2 and by mpirun; without them MPI would start a world of one
_PMI_VARIABLES = ("PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "PMI2_RANK")

ENDED, NOT_STARTED, BROKE_OFF = "ended", "not started", "broke off"


def is_possible(environ: Mapping[str, str]) -> bool:
    """Whether somebody started us as an MPI task, and mpi4py is installed."""
    if not any(name in environ for name in _PMI_VARIABLES):
        return False
    return importlib.util.find_spec("mpi4py") is not None


def run(body: Callable[[Callable[[], None]], None], inbox: SignalInbox) -> str:
    """Fork, run ``body(started)`` in the child and watch it; how that went.

    ``body`` calls ``started()`` once MPI works. ENDED: an ending signal was received, or the body
    returned. NOT_STARTED: it did not call within START_SECONDS. BROKE_OFF: it died later.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body(lambda: _tell(writer))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    try:
        return _Watch(pid, reader, inbox).until_gone()
    finally:
        os.close(reader)


def _tell(writer: int) -> None:
    os.write(writer, b"s")


class _Watch:
    """One child and what we know of it."""

    def __init__(self, pid: int, reader: int, inbox: SignalInbox) -> None:
        self._pid = pid
        self._reader = reader
        self._inbox = inbox
        self._started = False
        self._start_by = time.monotonic() + START_SECONDS
        self._asked_at: float | None = None
        self._parent = os.getppid()

    def until_gone(self) -> str:
        while True:
            received = self._inbox.wait(1.0)  # a child's end wakes it
            self._started = self._started or self._has_told()
            is_signal = received is not None and received.signum in ENDING
            # before looking at the child: mpirun ends both, and the child's end is then no failure
            if is_signal or os.getppid() != self._parent:
                self._ask_to_end()
            fate = reap(self._pid)
            if fate is not None:
                return self._outcome(fate)
            now = time.monotonic()
            if self._asked_at is not None and now - self._asked_at > LAST_SECONDS:
                self._kill()
                return ENDED
            if not self._started and now > self._start_by:
                self._kill()
                return NOT_STARTED

    def _has_told(self) -> bool:
        ready, _, _ = select.select([self._reader], [], [], 0)
        return bool(ready) and os.read(self._reader, 1) == b"s"

    def _ask_to_end(self) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            # in MPI_Init it would not listen, and has nothing to lose
            send(self._pid, signal.SIGTERM if self._started else signal.SIGKILL)
        elif now - self._asked_at > SECOND_AFTER_SECONDS:
            send(self._pid, signal.SIGKILL)

    def _kill(self) -> None:
        send(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _outcome(self, fate: Fate) -> str:
        if self._asked_at is not None or (fate.code == 0 and self._started):
            return ENDED
        return BROKE_OFF if self._started else NOT_STARTED
