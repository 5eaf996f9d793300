"""The calls a training script makes; one recorder per process, opened at the first call.

Knows steps and phases. Does not know TensorFlow, and does not interpret what it records.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import ContextManager, Iterable, Iterator, TypeVar

from hpcprof.annotate.nvtx_ranges import NvtxDomain, open_domain
from hpcprof.annotate.recorder import SpanRecorder
from hpcprof.artifacts import node_time, rank_env, span_format

T = TypeVar("T")

BEACON_INTERVAL_NS = 10_000_000_000
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
        self._beacon_seq = 0
        self.last_beacon_ns = 0
        self.beacon()
        self.recorder.flush()  # a rank killed during start-up still has its clock on record

    def step_of_span(self) -> int:
        """A span outside a step (fetching the next batch) belongs to the step that follows."""
        return self.next_step if self.current_step < 0 else self.current_step

    def beacon(self) -> None:
        """Tie spans, NVTX and the wall clock together at one moment (see span_format)."""
        seq = self._beacon_seq
        self._beacon_seq += 1
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
        if end_ns - self.last_beacon_ns > BEACON_INTERVAL_NS:
            self.beacon()
        self.recorder.flush()


class _Step:
    __slots__ = ("_number", "_session", "_start")

    def __init__(self, session: _Session, number: int | None) -> None:
        self._session = session
        self._number = session.next_step if number is None else number
        self._start = 0

    def __enter__(self) -> None:
        session = self._session
        session.current_step = self._number
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
        self._name = name
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


def _range_name(name: str, flags: int) -> str:
    if flags != span_format.KIND_PHASE:
        return name
    range_name = _PHASE_NAMES.get(name)
    if range_name is None:
        range_name = _PHASE_NAMES[name] = span_format.NVTX_PHASE_PREFIX + name
    return range_name


_session: _Session | None = None
_decided = False
_opening = threading.Lock()


def leave_note(text: str) -> None:
    """Tell the launcher something for the manifest, through the node-local state folder."""
    folder = os.environ.get(rank_env.STATE_FOLDER)
    if not folder:
        return
    try:
        with open(os.path.join(folder, "annotate-error"), "a", encoding="utf-8") as stream:
            stream.write(text.replace("\n", " ") + "\n")
    except OSError:
        pass  # the note is a courtesy; the training comes first


def _current() -> _Session | None:
    """The session, opened at the first call; None when the launcher did not ask for one."""
    global _session, _decided
    with _opening:  # data-loading threads may call at the same time, and must not find it half open
        if not _decided:
            _session = _open_session()
            if _session is not None:
                atexit.register(close)
                os.register_at_fork(after_in_child=_forget)
            _decided = True
    return _session


def _open_session() -> _Session | None:
    folder = os.environ.get(rank_env.RANK_FOLDER)
    rank = os.environ.get(rank_env.RANK, "")
    if not folder or not rank.isdigit():
        return None
    nvtx = os.environ.get(rank_env.NVTX) == "1" or "NVTX_INJECTION64_PATH" in os.environ
    try:
        return _Session(Path(folder), int(rank), nvtx=nvtx)
    except FileExistsError:
        return None  # another process of this rank (a data worker) owns the file: stay silent
    except OSError as error:
        leave_note(f"spans were not recorded: {error.strerror} ({folder})")
        return None


def _forget() -> None:
    """In a forked child: the file belongs to the parent, and a lock may be held by its threads."""
    global _session, _opening
    _opening = threading.Lock()
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
    session = _session if _decided else _current()
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
    if session is not None and end_ns >= start_ns:
        number = session.step_of_span()
        session.recorder.add(start_ns, end_ns, name, number, span_format.KIND_PHASE, nbytes)


def data(iterable: Iterable[T]) -> Iterator[T]:
    """Iterate over a data set and record each wait for the next element as phase ``input``."""
    iterator = iter(iterable)
    if _current() is None:
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
        try:
            session.beacon()
        finally:
            session.recorder.close()
