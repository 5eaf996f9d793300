"""The calls a training script makes; one recorder per process, opened at the first call.

Knows steps and phases. Does not know TensorFlow, and does not interpret what it records.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from pathlib import Path
from typing import ContextManager, Iterable, Iterator, TypeVar

from hpcprof.annotate import guards, nvtx_recorder, op_ranges, tf_profiler, watchdog
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.horovod_size import look_at_horovod
from hpcprof.annotate.notes import leave_message, leave_note
from hpcprof.annotate.nvtx_ranges import NvtxDomain, installed_version, open_domain
from hpcprof.annotate.recorder import SpanRecorder, owner_of
from hpcprof.annotate.window import CaptureWindow
from hpcprof.artifacts import node_time, rank_env, rank_state, span_format
from hpcprof.artifacts.window import Window

T = TypeVar("T")

BEACON_INTERVAL_NS = 10_000_000_000
_NO_NUMBER = 2**31  # of a step; no record can hold it, so what bears it is left out, with a note
_PHASE_NAMES: dict[str, str] = {}  # phase -> NVTX range name, made once per phase

_now = node_time.monotonic_ns


class _Off:
    """What every call returns when nothing is recorded: entering and leaving does nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        return None


_OFF = _Off()


class _Session:
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
        self._first_step_to_come = True
        # in this order at the start of a step: what is recorded begins before what is to be seen
        wanted = [self._wanted_window(), op_ranges.wanted(), tf_profiler.wanted(self.beacon)]
        self._followers = [each for each in (*wanted, guards.wanted()) if each is not None]
        self._flush_recorder = nvtx_recorder.flusher()
        self._progress = watchdog.Progress(self.last_beacon_ns)
        self._watchdog = watchdog.start()
        if self._watchdog is not None:
            self._watchdog.follow(self._progress)
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

    def waiting_for_input(self) -> _Span:
        """The span around fetching the next batch."""
        return _Span(self, "input", span_format.KIND_PHASE, 0)

    def end_step(self, start_ns: int, end_ns: int, number: int) -> None:
        self.recorder.add(start_ns, end_ns, "step", number, span_format.KIND_STEP)
        self.current_step = span_format.NO_STEP
        self.next_step = number + 1
        progress = self._progress
        progress.step = number
        progress.end_ns = end_ns
        for follower in reversed(self._followers):
            if follower.step_ended(number):
                self.leave(follower)
        if self._first_step_to_come:
            self._first_step_to_come = False
            look_at_horovod()
        if end_ns - self.last_beacon_ns > BEACON_INTERVAL_NS:
            self.beacon()
        self.recorder.flush()
        if self._flush_recorder is not None:
            self._flush_recorder()

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

    def close(self) -> None:
        """Write what is pending, and stop watching."""
        try:
            if self._watchdog is not None:
                self._watchdog.stop()
            for follower in reversed(self._followers):
                follower.close(self.next_step - 1)
            self.beacon()
        finally:
            self.recorder.close()


class _Step:
    __slots__ = ("_number", "_session", "_start")

    def __init__(self, session: _Session, number: int | None) -> None:
        self._session = session
        self._number = session.next_step if number is None else _whole(number)
        self._start = 0

    def __enter__(self) -> None:
        session = self._session
        session.begin_step(self._number)
        if session.domain is not None:
            session.domain.push(f"{span_format.NVTX_STEP_PREFIX}{self._number}")
        self._start = _now()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        end = _now()
        if self._session.domain is not None:
            self._session.domain.pop()
        self._session.end_step(self._start, end, self._number)


class _Span:
    __slots__ = ("_bytes", "_flags", "_name", "_session", "_start", "cancelled")

    def __init__(self, session: _Session, name: str, flags: int, nbytes: int) -> None:
        self.cancelled = False
        self._session = session
        self._name = name if type(name) is str else _text(name)
        self._flags = flags
        self._bytes = nbytes
        self._start = 0

    def __enter__(self) -> _Span:
        domain = self._session.domain
        if domain is not None:
            domain.push(_range_name(self._name, self._flags))
        self._start = _now()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        end = _now()
        session = self._session
        if session.domain is not None:
            session.domain.pop()
        if not self.cancelled:
            session.recorder.add(
                self._start, end, self._name, session.step_of_span(), self._flags, self._bytes
            )


def _whole(number: object) -> int:
    """A step's number now: a counter of TensorFlow's would be another at the step's end."""
    if type(number) is int:
        return number
    try:
        return int(number)  # type: ignore[call-overload, no-any-return]
    except Exception:  # whatever it is, the training runs without hpcprof too
        return _NO_NUMBER


def _text(name: object) -> str:
    try:
        return str(name)
    except Exception:  # as above
        return type(name).__name__


def _range_name(name: str, flags: int) -> str:
    if flags != span_format.KIND_PHASE:
        return name
    range_name = _PHASE_NAMES.get(name)
    if range_name is None:
        range_name = _PHASE_NAMES[name] = span_format.NVTX_PHASE_PREFIX + name
    return range_name


_session: _Session | None = None
_decided = False
_is_opening = False
_opening = threading.RLock()  # a signal handler may call, in the thread that holds it


def _current(*, marks_steps: bool = False) -> _Session | None:
    """The session, opened at the first call; None when the launcher did not ask for one.

    ``marks_steps``: this call is one that a training makes, and a data worker does not.
    """
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


def _open_session(*, marks_steps: bool) -> _Session | None:
    folder = os.environ.get(rank_env.RANK_FOLDER)
    rank = os.environ.get(rank_env.RANK, "")
    if not folder or not rank.isdigit():
        return None
    if not _may_record(marks_steps=marks_steps):
        return None
    os.environ[rank_env.OWNER] = str(os.getpid())  # the processes that this one starts stay silent
    nvtx = os.environ.get(rank_env.NVTX) == "1" or "NVTX_INJECTION64_PATH" in os.environ
    try:
        return _Session(Path(folder), int(rank), nvtx=nvtx)
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


def is_active() -> bool:
    """Whether calls record anything in this process."""
    return (_session if _decided else _current()) is not None


def step(number: int | None = None) -> ContextManager[object]:
    """One optimizer update. Steps count from 0 unless ``number`` is given.

    The batch fetched just before a step belongs to it.
    """
    session = _session if _decided else _current(marks_steps=True)
    return _OFF if session is None else _Step(session, number)


def phase(name: str, nbytes: int = 0) -> ContextManager[object]:
    """A part of a step: input, h2d, forward, backward, allreduce, optimizer, checkpoint or eval.

    ``nbytes``: payload in bytes, for allreduce and input. In TensorFlow's graph mode a Python
    range around code *inside* a ``tf.function`` is wrong; put it around the call of one.
    """
    session = _session if _decided else _current()
    return _OFF if session is None else _Span(session, name, span_format.KIND_PHASE, nbytes)


def span(name: str) -> ContextManager[object]:
    """Anything else worth seeing on the timeline."""
    session = _session if _decided else _current()
    return _OFF if session is None else _Span(session, name, span_format.KIND_HOST, 0)


def now_ns() -> int:
    """The clock of all spans: CLOCK_MONOTONIC of this node, in ns."""
    return _now()


def record_phase(name: str, start_ns: int, end_ns: int, nbytes: int = 0) -> None:
    """A phase that was timed elsewhere, for example by stamps inside a graph.

    Times are ``now_ns()`` of this node; an end before its start is not recorded.
    """
    session = _session if _decided else _current()
    if session is not None and not _is_before(end_ns, start_ns):
        number = session.step_of_span()
        kind = span_format.KIND_PHASE
        session.recorder.add(start_ns, end_ns, _text(name), number, kind, nbytes)


def _is_before(one: int, other: int) -> bool:
    try:
        return bool(one < other)
    except Exception:  # no numbers: the recorder tells of it
        return False


def data(iterable: Iterable[T]) -> Iterator[T]:
    """Iterate over a data set and record each wait for the next element as phase ``input``."""
    iterator = iter(iterable)
    if _current(marks_steps=True) is None:
        return iterator
    return _timed(iterator)


def _timed(iterator: Iterator[T]) -> Iterator[T]:
    exhausted = object()
    while _session is not None:
        with _session.waiting_for_input() as waiting:
            element = next(iterator, exhausted)
            if element is exhausted:
                waiting.cancelled = True  # the wait for an end is no input of any step
                return
        yield element  # type: ignore[misc]
    yield from iterator


def beacon() -> None:
    """Record one clock beacon now (done by itself at start, at the end and every 10 s)."""
    session = _session if _decided else _current()
    if session is not None:
        session.beacon()


def close() -> None:
    """Write what is pending and stop recording; called at exit."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()
