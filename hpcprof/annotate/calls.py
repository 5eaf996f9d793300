"""The calls a training script makes.

Explicit calls win over hooks: from the first ``step`` or ``data`` on hooks mark no steps any more,
and a phase that the script marks is left to the script.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Iterator, TypeVar, cast

from hpcprof.annotate import automatic, session, training_seen
from hpcprof.annotate.session import Session
from hpcprof.artifacts import node_time, span_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    _F = TypeVar("_F", bound=Callable[..., object])

    class Mark(Protocol):
        """For ``with``, and as a decorator, which marks every call of the function."""

        def __enter__(self) -> object: ...

        def __exit__(self, kind: object, value: object, trace: object) -> None: ...

        def __call__(self, function: _F) -> _F: ...


T = TypeVar("T")

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

    def __call__(self, function: _F) -> _F:
        return function


_OFF = _Off()


class _Step:
    __slots__ = ("_given", "_number", "_session", "_start")

    def __init__(self, current: Session, number: int | None) -> None:
        self._session = current
        self._given = number
        self._number = current.next_step if number is None else _whole(number)
        self._start = 0

    def __enter__(self) -> None:
        current = self._session
        current.begin_step(self._number)
        current.push_step(self._number)
        self._start = _now()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        end = _now()
        self._session.pop()
        self._session.end_step(self._start, end, self._number)

    def __call__(self, function: _F) -> _F:
        return _marked(function, functools.partial(step, self._given))


class _Span:
    __slots__ = ("_bytes", "_flags", "_name", "_session", "_start", "cancelled")

    def __init__(self, current: Session, name: str, flags: int, nbytes: int) -> None:
        self.cancelled = False
        self._session = current
        self._name = name if type(name) is str else _text(name)
        self._flags = flags
        self._bytes = nbytes
        self._start = 0

    def __enter__(self) -> _Span:
        domain = self._session.domain
        if domain is not None:
            domain.push(range_name(self._name, self._flags))
        self._start = _now()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        end = _now()
        current = self._session
        if current.domain is not None:
            current.domain.pop()
        if not self.cancelled:
            current.recorder.add(
                self._start, end, self._name, current.step_of_span(), self._flags, self._bytes
            )

    def __call__(self, function: _F) -> _F:
        if self._flags == span_format.KIND_PHASE:
            return _marked(function, functools.partial(phase, self._name, self._bytes))
        return _marked(function, functools.partial(span, self._name))


def _marked(function: _F, mark: Callable[[], Mark]) -> _F:
    """The function, each call of which is marked anew: calls may nest and run in threads."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with mark():
            return function(*args, **kwargs)

    return cast("_F", marked)


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


def range_name(name: str, flags: int) -> str:
    """The NVTX range of a span."""
    if flags != span_format.KIND_PHASE:
        return name
    found = _PHASE_NAMES.get(name)
    if found is None:
        found = _PHASE_NAMES[name] = span_format.NVTX_PHASE_PREFIX + name
    return found


def is_active() -> bool:
    """Whether calls record anything in this process."""
    return session.current() is not None


def step(number: int | None = None) -> Mark:
    """One optimizer update. Steps count from 0 unless ``number`` is given.

    The batch fetched just before a step belongs to it. ``@annotate.step()`` makes a step of every
    call of a function.
    """
    current = session.current(marks_steps=True)
    if current is None:
        return _OFF
    if not automatic.is_left_to_script():
        automatic.leave_to_script()
    return _Step(current, number)


def phase(name: str, nbytes: int = 0) -> Mark:
    """A part of a step: input, h2d, forward, backward, allreduce, optimizer, checkpoint or eval.

    ``nbytes``: payload in bytes, for allreduce and input. In TensorFlow's graph mode a Python
    range around code *inside* a ``tf.function`` is wrong; put it around the call of one.
    ``@annotate.phase("input")`` marks every call of a function.
    """
    current = session.current()
    if current is None:
        return _OFF
    automatic.leave_phase_to_script(name)
    return _Span(current, name, span_format.KIND_PHASE, nbytes)


def span(name: str) -> Mark:
    """Anything else worth seeing on the timeline; ``@annotate.span("augment")`` for a function."""
    current = session.current()
    return _OFF if current is None else _Span(current, name, span_format.KIND_HOST, 0)


def now_ns() -> int:
    """The clock of all spans: CLOCK_MONOTONIC of this node, in ns."""
    return _now()


def record_phase(name: str, start_ns: int, end_ns: int, nbytes: int = 0) -> None:
    """A phase that was timed elsewhere, for example by stamps inside a graph.

    Times are ``now_ns()`` of this node; an end before its start is not recorded.
    """
    current = session.current()
    if current is not None and not _is_before(end_ns, start_ns):
        automatic.leave_phase_to_script(name)
        number = current.step_of_span()
        kind = span_format.KIND_PHASE
        current.recorder.add(start_ns, end_ns, _text(name), number, kind, nbytes)


def _is_before(one: int, other: int) -> bool:
    try:
        return bool(one < other)
    except Exception:  # no numbers: the recorder tells of it
        return False


def data(iterable: Iterable[T]) -> Iterator[T]:
    """Iterate over a data set and record each wait for the next element as phase ``input``."""
    iterator = iter(iterable)
    if session.current(marks_steps=True) is None:
        return iterator
    automatic.leave_to_script()
    return _timed(iterator)


def _timed(iterator: Iterator[T]) -> Iterator[T]:
    exhausted = object()
    while (current := session.current()) is not None:
        with _Span(current, "input", span_format.KIND_PHASE, 0) as waiting:
            element = next(iterator, exhausted)
            if element is exhausted:
                waiting.cancelled = True  # the wait for an end is no input of any step
                return
        training_seen.saw_batch(element)
        yield element  # type: ignore[misc]
    yield from iterator


def beacon() -> None:
    """Record one clock beacon now (done by itself at start, at the end and every 10 s)."""
    current = session.current()
    if current is not None:
        current.beacon()


close = session.close
