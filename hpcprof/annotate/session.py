"""One recorder per process, opened at the first call of the script or of a hook that records.

Knows steps, and who follows them. Does not know TensorFlow, and does not interpret what it records.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from pathlib import Path
from typing import Callable

from hpcprof.annotate import (
    device_memory,
    guards,
    nvtx_recorder,
    op_ranges,
    tf_profiler,
    training_notes,
    training_seen,
    watchdog,
)
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.horovod_size import look_at_horovod
from hpcprof.annotate.notes import leave_message, leave_note
from hpcprof.annotate.nvtx_ranges import NvtxDomain, installed_version, open_domain
from hpcprof.annotate.recorder import SpanRecorder, owner_of
from hpcprof.annotate.window import CaptureWindow
from hpcprof.artifacts import node_time, rank_env, rank_state, span_format
from hpcprof.artifacts.window import Window

BEACON_INTERVAL_NS = 10_000_000_000
_NOTED_STEPS = (1, 5, 50)  # after so many steps training.json is written, so that a kill spares it

_now = node_time.monotonic_ns


class Session:
    """Recorder, NVTX domain and step count of this process."""

    def __init__(self, folder: Path, rank: int, *, nvtx: bool) -> None:
        self.recorder = SpanRecorder(folder / "spans.bin", rank, leave_note)
        self.domain: NvtxDomain | None = open_domain(leave_note) if nvtx else None
        self.next_step = 0
        self.current_step = span_format.NO_STEP
        self._beacon_seqs = itertools.count()
        self.last_beacon_ns = 0
        self.beacon()
        self.recorder.flush()  # a rank killed during start-up still has its clock on record
        self._ended_steps = 0
        self._before_close: list[Callable[[], None]] = []
        # in this order at the start of a step: what is recorded begins before what is to be seen;
        # in the opposite one at its end, so that what was seen is there for those who judge it
        recording = (
            self._wanted_window(),
            op_ranges.wanted(),
            tf_profiler.wanted(self._record_busy),
        )
        seeing = (guards.wanted(), training_seen.wanted(), device_memory.wanted())
        self._followers = [each for each in (*recording, *seeing) if each is not None]
        self._flush_recorder = nvtx_recorder.flusher()
        self.progress = watchdog.Progress(self.last_beacon_ns)
        self._watchdog = watchdog.start()
        if self._watchdog is not None:
            self._watchdog.follow(self.progress)
        if self.domain is not None:
            leave_message(rank_state.NVTX_VERSION, installed_version())

    def _wanted_window(self) -> CaptureWindow | None:
        text = os.environ.get(rank_env.WINDOW)
        if not text:
            return None
        try:
            steps, mode = Window.from_text(text)
        except ValueError as error:
            leave_note(f"no steps are recorded by the profiler: {rank_env.WINDOW}: {error}")
            return None
        return CaptureWindow(steps, mode, self.beacon, self._record_busy)

    def _record_busy(self, name: str, start_ns: int, end_ns: int, number: int) -> None:
        self.recorder.add(start_ns, end_ns, name, number, span_format.KIND_BUSY)

    def step_of_span(self) -> int:
        """A span outside a step (fetching the next batch) belongs to the step that follows."""
        return self.next_step if self.current_step < 0 else self.current_step

    def beacon(self) -> None:
        """Tie spans, NVTX and the wall clock together at one moment (see span_format)."""
        seq = next(self._beacon_seqs)
        before = _now()
        realtime = node_time.realtime_ns()
        if self.domain is not None:
            self.domain.mark(span_format.NVTX_BEACON.format(seq=seq, mono=before, real=realtime))
        after = _now()
        if self.domain is not None:
            self.domain.mark(span_format.NVTX_BEACON_AFTER.format(seq=seq, mono=after))
        self.recorder.add(before, after, "beacon", seq, span_format.KIND_BEACON, realtime)
        self.last_beacon_ns = after

    def end_step(self, start_ns: int, end_ns: int, number: int, updates: int = 1) -> None:
        """The step is over; of ``updates`` steps done in one call only the first is told of."""
        self.recorder.add(start_ns, end_ns, "step", number, span_format.KIND_STEP)
        self.current_step = span_format.NO_STEP
        self.next_step = number + updates
        progress = self.progress
        progress.step = number
        progress.end_ns = end_ns
        for follower in reversed(self._followers):
            if follower.step_ended(number):
                self.leave(follower)
        self._ended_steps += 1
        if self._ended_steps in _NOTED_STEPS:
            self._write_notes()
            if self._ended_steps == 1:
                look_at_horovod()
        if end_ns - self.last_beacon_ns > BEACON_INTERVAL_NS:
            self.beacon()
        self.recorder.flush()
        if self._flush_recorder is not None:
            self._flush_recorder()

    def cancel_step(self) -> None:
        """What had begun was no step (its call ended with an exception): it is not recorded."""
        self.current_step = span_format.NO_STEP

    def _write_notes(self) -> None:
        if training_seen.is_looking():
            training_notes.put(steps=self._ended_steps)
            training_notes.write()

    def before_close(self, call: Callable[[], None]) -> None:
        """Make this call, which must not raise, before the session closes."""
        self._before_close.append(call)

    def follow(self, follower: Follower) -> None:
        """Tell it of every step from now on."""
        self._followers = [*self._followers, follower]

    def leave(self, follower: Follower) -> None:
        """Tell it of no step any more."""
        self._followers = [each for each in self._followers if each is not follower]

    def begin_step(self, number: int) -> None:
        """The step begins now: what is recorded of it is switched on."""
        for follower in self._followers:
            if follower.step_begins(number):
                self.leave(follower)
        self.current_step = number

    def push_step(self, number: int) -> None:
        """Open the step's NVTX range in this thread."""
        if self.domain is not None:
            self.domain.push(f"{span_format.NVTX_STEP_PREFIX}{number}")

    def pop(self) -> None:
        """Close the innermost NVTX range of this thread."""
        if self.domain is not None:
            self.domain.pop()

    def close(self) -> None:
        """Write what is pending, and stop watching."""
        try:
            for call in self._before_close:
                call()
            if self._watchdog is not None:
                self._watchdog.stop()
            for follower in reversed(self._followers):
                follower.close(self.next_step - 1)
            self._write_notes()
            self.beacon()
        finally:
            self.recorder.close()


_session: Session | None = None
_decided = False
_is_opening = False
_opening = threading.RLock()  # a signal handler may call, in the thread that holds it


def is_opened() -> bool:
    """Whether this process records; opens nothing."""
    return _session is not None


def current(*, marks_steps: bool = False) -> Session | None:
    """The session, opened at the first call; None when the launcher did not ask for one.

    ``marks_steps``: this call is one that a training makes, and a data worker does not.
    """
    return _session if _decided else _open(marks_steps=marks_steps)


def _open(*, marks_steps: bool) -> Session | None:
    global _session, _decided, _is_opening
    with _opening:  # data-loading threads may call at the same time, and must not find it half open
        if not _decided and not _is_opening:
            _is_opening = True
            try:
                _session = _open_session(marks_steps=marks_steps)
            finally:
                _is_opening = False
            if _session is not None:
                atexit.register(close)
                os.register_at_fork(after_in_child=_forget)
            _decided = True
    return _session


def _open_session(*, marks_steps: bool) -> Session | None:
    folder = os.environ.get(rank_env.RANK_FOLDER)
    rank = os.environ.get(rank_env.RANK, "")
    if not folder or not rank.isdigit():
        return None
    if not _may_record(marks_steps=marks_steps):
        return None
    os.environ[rank_env.OWNER] = str(os.getpid())  # the processes that this one starts stay silent
    nvtx = os.environ.get(rank_env.NVTX) == "1" or (
        # our own recorder need not be told what spans.bin holds
        "NVTX_INJECTION64_PATH" in os.environ and not nvtx_recorder.is_ours()
    )
    try:
        return Session(Path(folder), int(rank), nvtx=nvtx)
    except FileExistsError:
        _note_earlier_owner(Path(folder) / "spans.bin")
    except OSError as error:
        leave_note(f"spans were not recorded: {error.strerror} ({folder})")
    return None


def _may_record(*, marks_steps: bool) -> bool:
    """Whether this process is the training, and not one that the training started."""
    owner = os.environ.get(rank_env.OWNER, "")
    if owner.isdigit() and int(owner) != os.getpid() and _is_alive(int(owner)):
        if marks_steps:
            leave_note(
                f"process {os.getpid()} marks steps and is not recorded: process {owner}, "
                "which started it, is taken for the training (it loaded TensorFlow or marks steps)"
            )
        return False
    # a worker may call before the training itself does; it must not take the file
    return marks_steps or not _is_worker()


def _is_worker() -> bool:
    """Whether ``multiprocessing`` started this process, in whichever way."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and somebody else's
    return True


def _note_earlier_owner(path: Path) -> None:
    """Another process of the rank has the file: silence beside a living one, else a word."""
    pid = owner_of(path)
    if pid is not None and pid != os.getpid() and not _is_alive(pid):
        leave_note(
            f"process {os.getpid()} is not recorded: an earlier process of this rank ({pid}, "
            f"ended) has its records in {path.name}"
        )


def _forget() -> None:
    """In a forked child: the file belongs to the parent, and a lock may be held by its threads."""
    global _session, _opening
    _opening = threading.RLock()
    # _decided stays: the child is silent, and no call asks again
    if _session is not None:
        _session.recorder.abandon()
        _session = None


def close() -> None:
    """Write what is pending and stop recording; called at exit."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()
