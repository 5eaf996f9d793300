"""Runs checks, each in a child of its own, and ends those that take too long.

A child that hangs in a file system, crashes or prints nonsense costs one row. What a check starts
belongs to its process group and is ended with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from hpcprof.doctor.registry import Check
from hpcprof.doctor.row import NOT_CHECKED, Row, not_checked
from hpcprof.doctor.subject import Subject
from hpcprof.launch import processes

Sink = Callable[[Row], None]

# in the environment of whatever a check starts: daemons that left its group are found by it
MARK_VARIABLE = "HPCPROF_DOCTOR_CHECK"
_LEAST_SECONDS = 0.1
_DONE = "."  # the last line of a check that came to its end, also when it had nothing to say
_REAP_SECONDS = 1.0
_TERM_SECONDS = 3.0


class _Running:
    """One check under way."""

    def __init__(self, check: Check, position: int, subject: Subject, deadline: float) -> None:
        self.check = check
        self.position = position
        self.mark = f"{os.getpid()}.{position}"
        self._seconds = min(check.limit_s, max(0.0, deadline - time.monotonic()))
        self.deadline = time.monotonic() + self._seconds
        self._unread = b""
        self._rows = 0
        self._is_done = False
        self.descriptor, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.descriptor)
            _answer(check, subject, writer, self.mark)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # as it does itself: whoever comes first
        os.close(writer)

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.deadline

    def read(self, sink: Sink) -> bool:
        """Pass on what has come; False at the end."""
        data = os.read(self.descriptor, 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line == _DONE.encode():
                self._is_done = True
                continue
            row = Row.from_line(line.decode("utf-8", "replace"))
            sink(row if row.node else row._replace(position=self.position + self._rows))
            self._rows += 1
        return bool(data)

    def end(self, sink: Sink, *, late: bool) -> None:
        """End whatever is left of the check, and say so when it gave no full answer."""
        self._end_group()
        status = self._reap()
        while select.select([self.descriptor], [], [], 0)[0] and self.read(sink):
            pass  # what came while another check was ended
        os.close(self.descriptor)
        if late or status:
            left = processes.with_environment(f"{MARK_VARIABLE}={self.mark}")
            processes.end(left, grace_seconds=1.0)
        if late and not self._is_done:
            why = f"no answer within {self._seconds:.0f} s"
        elif not self._is_done:
            why = f"the check broke off (wait status {status})"
        else:
            return
        row = not_checked(self.check.name, why, self.check.instead)
        sink(row._replace(position=self.position + self._rows))

    def _end_group(self) -> None:
        """TERM, by which srun gives its nodes back, and then KILL.

        The child is reaped after this: until then its id is not free for somebody else's group.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
            until = time.monotonic() + _TERM_SECONDS
            while _runs(self.pid) and time.monotonic() < until:
                time.sleep(0.02)
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Wait status; None when the child cannot be ended now (it hangs in the kernel)."""
        until = time.monotonic() + _REAP_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() > until:
                return None
            time.sleep(0.01)


def run(checks: Sequence[Check], subject: Subject, sink: Sink, *, deadline: float) -> None:
    """Run all checks; ``sink`` gets each row as it comes. ``deadline`` is a time.monotonic()."""
    waiting: dict[str, deque[tuple[Check, int]]] = {}
    for number, check in enumerate(checks):
        waiting.setdefault(check.lane, deque()).append((check, 100 * number))
    running: dict[int, _Running] = {}
    try:
        while waiting or running:
            busy = {one.check.lane for one in running.values()}
            for lane in [lane for lane in waiting if lane not in busy]:
                check, position = waiting[lane].popleft()
                if not waiting[lane]:
                    del waiting[lane]
                started = _Running(check, position, subject, deadline)
                running[started.descriptor] = started
            for one, late in _finished(running, sink):
                del running[one.descriptor]
                one.end(sink, late=late)
    finally:
        for one in running.values():  # Ctrl-C
            one.end(lambda _: None, late=True)


def _finished(running: dict[int, _Running], sink: Sink) -> Iterator[tuple[_Running, bool]]:
    """Wait for the next news; the checks that are over, and whether because of their time."""
    until = min(one.deadline for one in running.values())
    seconds = max(_LEAST_SECONDS, until - time.monotonic())
    readable, _, _ = select.select(list(running), [], [], seconds)
    for one in list(running.values()):
        if one.descriptor in readable and not one.read(sink):
            yield one, False
        elif one.is_late:
            yield one, True


def _runs(group: int) -> bool:
    """Whether a process of this group is there that is no zombie."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            if os.getpgid(int(name)) == group and processes.start_ticks(int(name)) is not None:
                return True
    return False


def _answer(check: Check, subject: Subject, writer: int, mark: str) -> NoReturn:
    """In the child: write the rows of the check, one a line."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # what it made is removed on the way
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.environ[MARK_VARIABLE] = mark
        subject = subject._replace(environ={**subject.environ, MARK_VARIABLE: mark})
        try:
            for row in check.function(subject):
                _write(writer, row.to_line())
        except Exception as error:  # whatever it is: one row, and never a traceback
            what = str(error) or type(error).__name__
            _write(writer, Row(check.name, NOT_CHECKED, what, check.instead).to_line())
        _write(writer, _DONE)
    finally:
        os._exit(0)


def _write(writer: int, line: str) -> None:
    os.write(writer, line.encode() + b"\n")
