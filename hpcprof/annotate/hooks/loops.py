"""Watches training loops that the user wrote: iterators of tf.data, calls of ``tf.function``,
gradients. ``step_tracker`` makes steps of it; its docstring has the rules.

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
import importlib
import sys
import threading
import weakref
from typing import Any, Callable, Iterator

from hpcprof.annotate import automatic, training_notes, training_seen
from hpcprof.annotate.hooks.patching import Function, patch
from hpcprof.annotate.step_tracker import COMPUTE, StepTracker
from hpcprof.artifacts import node_time, span_format
from hpcprof.artifacts.training_record import BY_LOOP

_ENOUGH_STEPS = 3  # without a batch fetched in Python: there will be none
_NO_FETCH = "batches do not come from tf.data, or are fetched inside of the training function"

_now = node_time.monotonic_ns
_ident = threading.get_ident


class _Call:
    """What is known of a ``tf.function``, and of an outermost call of it that is under way."""

    __slots__ = ("__weakref__", "fetches", "loops", "thread", "trains", "updates")

    def __init__(self) -> None:
        self.trains = False
        self.updates = False
        self.fetches = False  # takes its batches from an iterator inside
        self.loops = False  # several updates in one call
        self.thread = 0


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
        if self._step is not None:
            if training_notes.seen("steps_by") is None:
                training_notes.put(steps_by=BY_LOOP)
            self._step.end(end_ns)
            self._ended += 1
            if self._ended == _ENOUGH_STEPS and not _tracker.fetches_used:
                training_seen.note_once("input_not_separable", _NO_FETCH)
        self._step = None

    def cancel(self) -> None:
        if self._step is not None:
            self._step.cancel()
        self._step = None

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        current = automatic.marking_session()
        if current is not None:
            automatic.record_phase(current, name, start_ns, end_ns)

    def host(self, name: str, start_ns: int, end_ns: int) -> None:
        automatic.record_beside_steps(name, start_ns, end_ns, span_format.KIND_HOST)


_tracker = StepTracker(_Steps())
_under_way: list[_Call] = []  # outermost calls, of all threads
_known: weakref.WeakKeyDictionary[Any, _Call] = weakref.WeakKeyDictionary()
_trainer: int | None = None  # the thread that trains; None before its first training call
_is_fetching = False
_batch: list[Any] = []  # the last one fetched, until it is known what for
_executing_eagerly: Callable[[], bool] = bool  # until functions attach; answers False


def _is_looked_at() -> bool:
    """Whether what this thread does now is of interest."""
    if automatic.is_hushed() or not automatic.may_mark():
        return False
    thread = _ident()
    if _trainer is not None and thread != _trainer:
        return False
    return _executing_eagerly() and not any(call.thread == thread for call in _under_way)


def _becomes_trainer() -> None:
    global _trainer
    if _trainer is None:
        _trainer = _ident()


def _finish() -> None:
    automatic.safely(_tracker.finish)


def interrupt() -> None:
    """Something that belongs to no step begins in this thread."""
    if _is_looked_at():
        automatic.safely(_tracker.interrupted, _now())


def training_call(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call that is known to train and to update: Keras's ``train_on_batch``."""
    if not _is_looked_at():
        return function(*args, **kwargs)
    with _training(updates=True), automatic.hush():
        return function(*args, **kwargs)


@contextlib.contextmanager
def _training(*, updates: bool, phase: str | None = COMPUTE) -> Iterator[None]:
    """Around a training call."""
    _becomes_trainer()
    start = _now()
    automatic.safely(_tracker.call_begins, start)
    try:
        yield
    except BaseException:
        automatic.safely(_tracker.call_failed)
        raise
    automatic.safely(_tracker.call_ends, start, _now(), updates=updates, phase=phase)
    _was_trained_on()


# iterators


def attach_iterators(module: Any) -> None:
    """Hook ``OwnedIterator`` of ``data.ops.iterator_ops``."""
    patch(module.OwnedIterator, "__next__", _fetching)
    patch(module.OwnedIterator, "get_next", _fetching)
    automatic.end_with(_finish)


def attach_distributed_iterators(module: Any) -> None:
    """Hook the iterators of a tf.distribute strategy, in ``distribute.input_lib``."""
    patch(module.DistributedIteratorBase, "__next__", _fetching)
    patch(module.DistributedIteratorBase, "get_next", _fetching)


def _fetching(original: Function) -> Function:
    def fetch(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_fetching or not _is_looked_at() or not is_training_thread():
            if _under_way and not _executing_eagerly():
                automatic.safely(_saw_fetch_in_graph)
            return original(iterator, *args, **kwargs)
        return _fetch(original, iterator, args, kwargs)

    return fetch


def _saw_fetch_in_graph() -> None:
    _call_of_graph().fetches = True


def _fetch(original: Function, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    global _is_fetching
    start = _now()
    automatic.safely(_tracker.fetch_begins, start)
    _batch.clear()
    _is_fetching = True  # a distributed iterator asks those of its devices
    try:
        element = original(iterator, *args, **kwargs)
    except Exception:  # StopIteration, or what TensorFlow raises at the end
        automatic.safely(_tracker.exhausted, id(iterator))
        _batch.clear()
        raise
    finally:
        _is_fetching = False
    automatic.safely(_tracker.fetch_ends, start, _now(), id(iterator))
    _batch.append(element)
    return element


# tf.function


def attach_functions(module: Any) -> None:
    """Hook ``Function``, which ``tf.function`` makes."""
    global _executing_eagerly
    _executing_eagerly = module.context.executing_eagerly
    patch(module.Function, "__call__", _calling)
    patch(module.Function, "get_concrete_function", _tracing)


def attach_concrete_functions(module: Any) -> None:
    """Hook ``ConcreteFunction``, which some scripts trace by hand and call."""
    patch(module.ConcreteFunction, "__call__", _calling)


def _tracing(original: Function) -> Function:
    def get_concrete_function(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_looked_at():
            return original(function, *args, **kwargs)
        traced = _Call()
        traced.thread = _ident()
        _under_way.append(traced)
        try:
            concrete = original(function, *args, **kwargs)
        finally:
            traced.thread = 0
            _under_way.remove(traced)
        if traced.trains:
            _known[concrete] = traced
        return concrete

    return get_concrete_function


def _calling(original: Function) -> Function:
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_looked_at():
            return original(function, *args, **kwargs)
        known = _known.get(function)
        if known is None:
            known = _known[function] = _Call()
        known.thread = _ident()
        _under_way.append(known)
        try:
            if known.trains:
                with _training(updates=_updates(known)):
                    return original(function, *args, **kwargs)
            return _call_of_unknown(original, function, known, args, kwargs)
        finally:
            known.thread = 0
            _under_way.remove(known)

    return call


def _call_of_unknown(
    original: Function, function: Any, known: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call that may turn out to train when it is traced."""
    start = _now()
    result = original(function, *args, **kwargs)
    end = _now()
    if not known.trains:
        automatic.safely(_tracker.other_call)
        return result
    _becomes_trainer()
    automatic.safely(_note_function, function, known)
    automatic.safely(_tracker.call_ends, start, end, updates=_updates(known))
    _was_trained_on()
    return result


def _was_trained_on() -> None:
    """The batch that was fetched last was one of the training, and not of an evaluation."""
    if _batch:
        training_seen.saw_batch(_batch.pop())


def _updates(known: _Call) -> bool:
    """Where no optimizer was ever seen, weights are changed by hand, with each gradient."""
    return known.updates or training_seen.updates_by_hand()


def _note_function(function: Any, known: _Call) -> None:
    name = getattr(getattr(function, "python_function", None), "__name__", "training function")
    training_seen.saw_function(str(name), function)
    if known.fetches:
        training_seen.note_once("input_not_separable", _NO_FETCH)
    if known.loops:
        training_notes.warn(
            f"{name} makes several updates in one call: a step that was recorded is such a call"
        )


# gradients


def attach_gradients(module: Any) -> None:
    """Hook ``GradientTape``."""
    patch(module.GradientTape, "gradient", _taking_gradients)


def _taking_gradients(original: Function) -> Function:
    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if not automatic.may_look():
            return original(tape, target, sources, *args, **kwargs)
        training_seen.saw_sources(sources)
        if not _executing_eagerly():
            automatic.safely(_saw_gradient_in_graph)
        elif _is_looked_at() and _is_main_or_trainer():
            updates = training_seen.updates_by_hand()
            with _training(updates=updates, phase="backward"):
                return original(tape, target, sources, *args, **kwargs)
        return original(tape, target, sources, *args, **kwargs)

    return gradient


def _is_main_or_trainer() -> bool:
    """A replica's thread trains for another one."""
    return _trainer is not None or type(threading.current_thread()).__name__ != (
        "_MirroredReplicaThread"
    )


def _call_of_graph() -> _Call:
    """The call under way that builds this thread's graph."""
    thread = _ident()
    own = [call for call in _under_way if call.thread == thread]
    return own[0] if own else _under_way[-1]


def _saw_gradient_in_graph() -> None:
    training_seen.saw_strategy(_strategy())
    if _under_way:
        _call_of_graph().trains = True


def _strategy() -> Any:
    tf = sys.modules.get("tensorflow")
    distribute = getattr(tf, "distribute", None)
    if distribute is None or not distribute.has_strategy():
        return None
    return distribute.get_strategy()


# updates, told of by the hooks of optimizers


def saw_update_in_graph() -> None:
    """An optimizer's update becomes part of a graph. Raises nothing."""
    automatic.safely(_mark_update)


def _mark_update() -> None:
    if _under_way:
        call = _call_of_graph()
        call.updates = True
        call.loops = call.loops or _is_in_loop()


def _is_in_loop() -> bool:
    """Whether the graph that is built is the body of a loop."""
    graph = importlib.import_module("tensorflow").compat.v1.get_default_graph()
    while graph is not None:
        # the outermost one may be a plain graph without a name
        name = str(getattr(graph, "name", ""))
        if type(graph).__name__ == "WhileBodyFuncGraph" or "Dataset" in name:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def eager_update(original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An optimizer's update that is made at once."""
    training_seen.saw_eager_update()
    if not _is_looked_at():
        return original(*args, **kwargs)
    start = _now()
    result = original(*args, **kwargs)
    automatic.safely(_tracker.updated, start, _now())
    return result


def executes_eagerly() -> bool:
    """Whether operations of this thread are executed at once, and build no graph."""
    return _executing_eagerly()


def is_training_thread() -> bool:
    """Whether this thread trains, as far as is known."""
    if _trainer is None:
        return threading.current_thread() is threading.main_thread()
    return _ident() == _trainer
