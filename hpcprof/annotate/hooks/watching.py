"""What is known of a loop that the user wrote while it runs: who trains, which calls are under way.

A call of a ``tf.function`` is a training call when a gradient was taken while it was traced, in
whichever thread: the replicas of a MirroredStrategy are traced in threads of their own. So the
outermost calls under way are kept in one list for all threads, and a gradient in a graph marks the
call of its own thread, else the one that began last.

Looked at is only the thread that trains (the main one, until another makes a training call), only
what runs eagerly and not while a graph is built, and nothing inside of Keras's ``fit`` and its
like, which are told of as a whole.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Callable, Iterator

from hpcprof.annotate import automatic, training_seen
from hpcprof.annotate.step_tracker import COMPUTE, StepTracker
from hpcprof.artifacts import node_time, span_format
from hpcprof.artifacts.training_record import BY_LOOP

NO_FETCH = "batches do not come from tf.data, or are fetched inside of the training function"
_ENOUGH_STEPS = 3  # without a batch fetched in Python: there will be none

now = node_time.monotonic_ns
_ident = threading.get_ident


class Call:
    """What is known of a ``tf.function``, and of an outermost call of it that is under way."""

    __slots__ = ("__weakref__", "fetches", "loops", "thread", "trains", "updates")

    def __init__(self) -> None:
        self.trains = False
        self.updates = False
        self.fetches = False  # takes its batches from an iterator inside
        self.loops = False  # several updates in one call
        self.thread = 0  # that makes it, while it is under way

    def makes_update(self) -> bool:
        """Where no optimizer is used, weights are changed by hand, with each gradient."""
        return self.updates or training_seen.updates_by_hand()


class _Steps:
    """Where the tracker's steps go."""

    def __init__(self) -> None:
        self._step: automatic.AutomaticStep | None = None
        self._ended = 0

    def begin(self, start_ns: int) -> None:
        current = automatic.marking_session()
        if current is not None:
            self._step = automatic.AutomaticStep(current, start_ns)

    def end(self, end_ns: int) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        training_seen.note_once("steps_by", BY_LOOP)
        self._ended += 1
        if self._ended == _ENOUGH_STEPS and not tracker.fetches_used:
            training_seen.note_once("input_not_separable", NO_FETCH)
        step.end(end_ns)

    def cancel(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.cancel()

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        current = automatic.marking_session()
        if current is not None:
            automatic.record_phase(current, name, start_ns, end_ns)

    def host(self, name: str, start_ns: int, end_ns: int) -> None:
        automatic.record_beside_steps(name, start_ns, end_ns, span_format.KIND_HOST)


tracker = StepTracker(_Steps())
known_calls: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
batch: list[Any] = []  # the last one fetched, until it is known what for
_under_way: list[Call] = []  # outermost calls, of all threads
_trainer: int | None = None  # the thread that trains; None before its first training call
_executing_eagerly: Callable[[], bool] = bool  # until TensorFlow is there; answers False


def begin(executing_eagerly: Callable[[], bool]) -> None:
    """TensorFlow is there: ask it with this whether a thread builds a graph."""
    global _executing_eagerly
    _executing_eagerly = executing_eagerly
    automatic.end_with(_finish)


def _finish() -> None:
    automatic.safely(tracker.finish)


def executes_eagerly() -> bool:
    """Whether operations of this thread are executed at once, and build no graph."""
    return _executing_eagerly()


def is_looked_at() -> bool:
    """Whether what this thread does now is of interest."""
    if automatic.is_hushed() or not automatic.may_mark():
        return False
    thread = _ident()
    if _trainer is not None and thread != _trainer and _is_alive(_trainer):
        return False
    return _executing_eagerly() and not any(call.thread == thread for call in _under_way)


def _is_alive(ident: int) -> bool:
    return any(thread.ident == ident for thread in threading.enumerate())


def is_training_thread() -> bool:
    """Whether this thread trains, as far as is known."""
    if _trainer is None:
        return threading.current_thread() is threading.main_thread()
    return _ident() == _trainer


def becomes_trainer() -> None:
    """This thread trains; said only where it is looked at, so that the one before has ended."""
    global _trainer
    _trainer = _ident()


def is_replica() -> bool:
    """Whether this thread is a replica's, in a process of which no training is known."""
    return _trainer is None and type(threading.current_thread()).__name__ == (
        "_MirroredReplicaThread"
    )


def interrupt() -> None:
    """Something that belongs to no step begins in this thread."""
    if is_looked_at():
        automatic.safely(tracker.interrupted, now())


@contextlib.contextmanager
def under_way(call: Call) -> Iterator[None]:
    """Within this the thread makes this call, its outermost one."""
    call.thread = _ident()
    _under_way.append(call)
    try:
        yield
    finally:
        call.thread = 0
        _under_way.remove(call)


def call_of_this() -> Call | None:
    """The call under way that this thread is in, or for which it builds a graph."""
    thread = _ident()
    for call in _under_way:
        if call.thread == thread:
            return call
    return _under_way[-1] if _under_way and not _executing_eagerly() else None


@contextlib.contextmanager
def training(makes_update: Callable[[], bool], *, phase: str | None = COMPUTE) -> Iterator[None]:
    """Around a training call; whether it made an update is asked when it is over."""
    becomes_trainer()
    start = now()
    automatic.safely(tracker.call_begins, start)
    try:
        yield
    except BaseException:
        automatic.safely(tracker.call_failed)
        raise
    end = now()
    automatic.safely(tracker.call_ends, start, end, updates=makes_update(), phase=phase)
    was_trained_on()


def was_trained_on() -> None:
    """The batch that was fetched last was one of the training, and not of an evaluation."""
    if batch:
        training_seen.saw_batch(batch.pop())
