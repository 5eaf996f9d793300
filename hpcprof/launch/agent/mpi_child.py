"""Runs the part of an agent that uses MPI in a child, as MPI may hang, abort or kill its process.

The parent watches: it ends a child that does not start or end in time, and can go on without MPI.
"""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import time
import traceback
from typing import Callable, Mapping, NamedTuple

from hpcprof.launch.agent.ending import ASKED_TO_END, LAST_SECONDS, SECOND_AFTER_SECONDS
from hpcprof.launch.agent.journal import say
from hpcprof.launch.processes import Fate, reap, send
from hpcprof.launch.signals import SignalInbox

START_SECONDS = 20.0
# set by srun --mpi=pmix|pmi2 and by mpirun; without them MPI would start a world of one
_PMI_VARIABLES = ("PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "PMI2_RANK")

ENDED, NOT_STARTED, BROKE_OFF = "ended", "not started", "broke off"
_STARTED, _FAILED = b"s", b"!"  # what the child tells; after the latter the reason
_MOST_BYTES = 4096  # as much as a pipe takes in one piece
_REASON_CHARACTERS = 200


class Outcome(NamedTuple):
    """How it went: ENDED, NOT_STARTED or BROKE_OFF, and why, "" when nobody knows."""

    how: str
    reason: str = ""


def is_possible(environ: Mapping[str, str]) -> bool:
    """Whether somebody started us as an MPI task, and mpi4py is installed."""
    if not any(name in environ for name in _PMI_VARIABLES):
        return False
    return importlib.util.find_spec("mpi4py") is not None


def run(body: Callable[[Callable[[], None]], None], inbox: SignalInbox) -> Outcome:
    """Fork, run ``body(started)`` in the child and watch it; how that went.

    ``body`` calls ``started()`` once MPI works. ENDED: an ending signal was received, or the body
    returned. NOT_STARTED: it did not call within START_SECONDS. BROKE_OFF: it died later. What it
    raises is printed, and is the reason.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body(lambda: _tell(writer, _STARTED))
            os._exit(0)
        except Exception as error:  # whatever it is: the parent goes on without MPI
            last = traceback.format_exception_only(type(error), error)[-1]
            reason = " ".join(last.split())[:_REASON_CHARACTERS]
            say(f"MPI: {reason}")
            _tell(writer, _FAILED + reason.encode("utf-8", "replace"))
        finally:
            os._exit(1)
    os.close(writer)
    try:
        return _Watch(pid, reader, inbox).until_gone()
    finally:
        os.close(reader)


def _tell(writer: int, text: bytes) -> None:
    os.write(writer, text[:_MOST_BYTES])


class _Watch:
    """One child and what we know of it."""

    def __init__(self, pid: int, reader: int, inbox: SignalInbox) -> None:
        self._pid = pid
        self._reader = reader
        self._inbox = inbox
        self._told = b""
        self._start_by = time.monotonic() + START_SECONDS
        self._asked_at: float | None = None
        self._parent = os.getppid()

    @property
    def _started(self) -> bool:
        return self._told.startswith(_STARTED)

    def until_gone(self) -> Outcome:
        while True:
            received = self._inbox.wait(1.0)  # a child's end wakes it
            self._listen()
            is_signal = received is not None and received.signum in ASKED_TO_END
            # before looking at the child: mpirun ends both, and the child's end is then no failure
            if is_signal or os.getppid() != self._parent:
                self._ask_to_end()
            fate = reap(self._pid)
            if fate is not None:
                return self._outcome(fate)
            now = time.monotonic()
            if self._asked_at is not None and now - self._asked_at > LAST_SECONDS:
                self._kill()
                return Outcome(ENDED)
            if not self._started and now > self._start_by:
                self._kill()
                return Outcome(NOT_STARTED, f"not within {START_SECONDS:.0f} s")

    def _listen(self) -> None:
        """Take what the child has told since."""
        while select.select([self._reader], [], [], 0)[0]:
            text = os.read(self._reader, _MOST_BYTES)
            if not text:  # it has closed its end
                return
            self._told += text

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

    def _outcome(self, fate: Fate) -> Outcome:
        self._listen()
        if self._asked_at is not None or (fate.code == 0 and self._started):
            return Outcome(ENDED)
        reason = self._told.partition(_FAILED)[2].decode("utf-8", "replace")
        if not reason and fate.signum:
            reason = f"ended by signal {fate.signum}"
        return Outcome(BROKE_OFF if self._started else NOT_STARTED, reason)
