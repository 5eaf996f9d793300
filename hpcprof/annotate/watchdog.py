"""Writes down what every thread does when the training makes no step for too long.

A daemon thread of the training process. It only writes: stacks into the rank's folder, a message
for the launcher, a line on stderr. It ends nothing, because a long evaluation or checkpoint looks
the same as a hang.

Where the script marks steps, no step end for ``HANG_AFTER`` seconds is a hang. Where hooks found
the steps, the main thread must also have stood still: what comes beside and after them (a long
evaluation) is not known. In a script that has none, steps cannot be seen; there it is a hang when
no Python thread has moved for so long and the main thread has not run at all (a loop is found at
the same place again and again), unless the main thread waits for a process that it started: the
training may be that one.

The message ``rank_state.HANG`` is one line of JSON: ``step`` (the last that ended, -1 for none),
``seconds`` without one, ``at`` with ``realtime_ns`` and ``monotonic_ns`` of now; it is an entry of
the manifest's ``hangs``.

Needs the interpreter: while a C function keeps the GIL, nothing is written. faulthandler is one, so
it dumps into a file of the node; the run folder, which may stall, is written without the GIL.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

from hpcprof.annotate.notes import leave_message, leave_note, say
from hpcprof.artifacts import node_time, rank_env, rank_state

_DUMP = "stacks"  # in the state folder
_MAX_DUMPS = 3  # each may be 100 KB, and a training may hang and recover for ever
_MAX_INTERVAL_S = 1.0  # between two looks at the threads of a script without marked steps
_LOOKED_AT_FRAMES = 40  # innermost ones of a thread
_WAITING_FRAMES = 8  # innermost ones; below popen_forkserver.poll are connection.wait and selectors


class Progress:
    """What the session tells of its steps. ``end_ns`` starts as the time of the session's start.

    ``is_found``: hooks found them, and nobody knows when the next one is to come.
    """

    __slots__ = ("end_ns", "is_found", "step")

    def __init__(self, start_ns: int) -> None:
        self.end_ns = start_ns
        self.step = -1
        self.is_found = False


class Watchdog:
    """The thread and what it knows. ``progress`` None: no steps are marked so far."""

    def __init__(self, stacks: str, hang_after_s: float) -> None:
        self.progress: Progress | None = None
        self._stacks = stacks
        self._hang_after_s = hang_after_s
        self._interval_s = min(_MAX_INTERVAL_S, hang_after_s / 10)
        self._seen = 0
        self._moved_ns = node_time.monotonic_ns()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="hpcprof-watchdog", daemon=True)
        self._thread.start()

    def follow(self, progress: Progress) -> None:
        """From now on steps are marked."""
        self.progress = progress
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon; does not wait for it."""
        self._over = True
        self._wake.set()

    def _run(self) -> None:
        try:
            for _ in range(_MAX_DUMPS):
                sign_ns = self._wait_for_hang()
                if self._over:
                    return
                self._report(sign_ns)
                while not self._over and self._last_sign_ns() == sign_ns:
                    self._sleep(self._interval_s if self._are_looked_at() else self._hang_after_s)
        except OSError as error:
            leave_note(f"the watchdog ended: {error.strerror} ({self._stacks})")

    def _wait_for_hang(self) -> int:
        """Return when there was no sign of life for too long, with the time of the last one."""
        while not self._over:
            sign_ns = self._last_sign_ns()
            left = self._hang_after_s - (node_time.monotonic_ns() - sign_ns) / 1e9
            if left <= 0:
                return sign_ns
            self._sleep(min(left, self._interval_s) if self._are_looked_at() else left)
        return 0

    def _sleep(self, seconds: float) -> None:
        """Wait, and start counting anew when it took much longer: the process was suspended."""
        start = node_time.monotonic_ns()
        self._wake.wait(seconds)
        self._wake.clear()
        now = node_time.monotonic_ns()
        if (now - start) / 1e9 > seconds + self._hang_after_s / 2:
            self._moved_ns = now

    def _last_sign_ns(self) -> int:
        """When the training last showed that it lives."""
        progress = self.progress
        if progress is not None and not progress.is_found:
            return max(progress.end_ns, self._moved_ns)
        places = _where_threads_are(only_main=progress is not None)
        if places != self._seen or _waits_for_a_process():
            self._seen = places
            self._moved_ns = node_time.monotonic_ns()
        return self._moved_ns if progress is None else max(progress.end_ns, self._moved_ns)

    def _are_looked_at(self) -> bool:
        """Whether threads have to be looked at again and again: steps alone do not tell."""
        return self.progress is None or self.progress.is_found

    def _report(self, sign_ns: int) -> None:
        """Write the stacks, then tell the launcher, then the user. Raises OSError."""
        now_ns, realtime_ns = node_time.monotonic_ns(), node_time.realtime_ns()
        seconds = (now_ns - sign_ns) / 1e9
        step = -1 if self.progress is None else self.progress.step
        if self.progress is None:
            happened = f"no Python thread has moved for {seconds:.0f} s"
        elif step < 0:
            happened = f"no step yet, {seconds:.0f} s after the start"
        else:
            happened = f"no step for {seconds:.0f} s after step {step}"
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(realtime_ns / 1e9))
        main = threading.main_thread().ident or 0
        header = f"=== {utc} pid {os.getpid()}: {happened}; the main thread is 0x{main:016x}\n"
        self._append(header.encode(), _dump_on_node())
        leave_message(
            rank_state.HANG,
            f'{{"step": {step}, "seconds": {seconds:.1f}, '
            f'"at": {{"realtime_ns": {realtime_ns}, "monotonic_ns": {now_ns}}}}}\n',
        )
        say(f"{happened}; what every thread does is in {self._stacks}")

    def _append(self, header: bytes, dump: bytes) -> None:
        """Write both into the rank's folder; without a dump it is made there. Raises OSError."""
        descriptor = os.open(self._stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(header + dump)
            if not dump:
                stream.flush()
                faulthandler.dump_traceback(stream, all_threads=True)
            stream.write(b"\n")


def _dump_on_node() -> bytes:
    """The stacks by way of the state folder; empty when there is none, or it cannot be written."""
    folder = os.environ.get(rank_env.STATE_FOLDER)
    if not folder:
        return b""
    try:
        with open(os.path.join(folder, _DUMP), "w+b") as stream:
            faulthandler.dump_traceback(stream, all_threads=True)
            stream.seek(0)
            return stream.read()
    except OSError:
        return b""


def _where_threads_are(*, only_main: bool) -> int:
    """A number that changes when another Python thread is elsewhere, or the main one has run."""
    own, main = threading.get_ident(), threading.main_thread().ident or 0
    places = [time.clock_gettime_ns(time.pthread_getcpuclockid(main))]
    for ident, frame in sys._current_frames().items():
        if ident == own or (only_main and ident != main):
            continue
        places.append(ident)
        for _ in range(_LOOKED_AT_FRAMES):
            places += (id(frame.f_code), frame.f_lasti)
            if frame.f_back is None:
                break
            frame = frame.f_back
    return hash(tuple(places))


def _waits_for_a_process() -> bool:
    """Whether the main thread is in ``subprocess`` or in the ``join`` of ``multiprocessing``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for _ in range(_WAITING_FRAMES):
        if frame is None:
            return False
        module = str(frame.f_globals.get("__name__"))
        if module == "subprocess" or module.startswith("multiprocessing.popen_"):
            return True
        frame = frame.f_back
    return False


_watchdog: Watchdog | None = None


def start() -> Watchdog | None:
    """This process's watchdog, started at the first call; None when nobody asked for one.

    Raises nothing.
    """
    global _watchdog
    folder = os.environ.get(rank_env.RANK_FOLDER)
    seconds = _hang_after_s()
    if _watchdog is None and folder and seconds > 0:
        try:
            _watchdog = Watchdog(os.path.join(folder, "stacks.txt"), seconds)
        except RuntimeError as error:  # no more threads
            leave_note(f"there is no watchdog: {error}")
            return None
        os.register_at_fork(after_in_child=_forget)
    return _watchdog


def _hang_after_s() -> float:
    text = os.environ.get(rank_env.HANG_AFTER, "")
    try:
        return float(text) if text else 0.0
    except ValueError:
        leave_note(f"there is no watchdog: {rank_env.HANG_AFTER}={text!r} is not a number")
        return 0.0


def _forget() -> None:
    """In a forked child, which has no thread but the one that forked."""
    global _watchdog
    _watchdog = None
