"""Watches training loops that the user wrote: iterators of tf.data, calls of ``tf.function``,
gradients, updates. ``step_tracker`` makes steps of it, by rules that its docstring has.
"""

from __future__ import annotations

import sys
from typing import Any

from hpcprof.annotate import automatic, training_notes, training_seen
from hpcprof.annotate.hooks import watching
from hpcprof.annotate.hooks.patching import Function, patch
from hpcprof.annotate.hooks.watching import Call, now, tracker

_is_fetching = False


def training_call(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call that is known to train and to update: Keras's ``train_on_batch``."""
    if not watching.is_looked_at():
        return function(*args, **kwargs)
    with watching.training(lambda: True), automatic.hush():
        return function(*args, **kwargs)


# iterators


def attach_iterators(module: Any) -> None:
    """Hook ``OwnedIterator`` of ``data.ops.iterator_ops``."""
    patch(module.OwnedIterator, "__next__", _fetching)
    patch(module.OwnedIterator, "get_next", _fetching)


def attach_distributed_iterators(module: Any) -> None:
    """Hook the iterators of a tf.distribute strategy, in ``distribute.input_lib``."""
    patch(module.DistributedIteratorBase, "__next__", _fetching)
    patch(module.DistributedIteratorBase, "get_next", _fetching)


def _fetching(original: Function) -> Function:
    def fetch(iterator: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _is_fetching or not watching.is_looked_at() or not watching.is_training_thread():
            if not watching.executes_eagerly():
                automatic.safely(_saw_fetch_in_graph)
            return original(iterator, *args, **kwargs)
        return _fetch(original, iterator, args, kwargs)

    return fetch


def _saw_fetch_in_graph() -> None:
    call = watching.call_of_this()
    if call is not None:
        call.fetches = True


def _fetch(original: Function, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    global _is_fetching
    start = now()
    automatic.safely(tracker.fetch_begins, start)
    watching.batch.clear()
    _is_fetching = True  # a distributed iterator asks those of its devices
    try:
        element = original(iterator, *args, **kwargs)
    except Exception:  # StopIteration, or what TensorFlow raises at the end
        automatic.safely(tracker.exhausted, id(iterator))
        raise
    finally:
        _is_fetching = False
    automatic.safely(tracker.fetch_ends, start, now(), id(iterator))
    watching.batch.append(element)
    return element


# tf.function


def attach_functions(module: Any) -> None:
    """Hook ``Function``, which ``tf.function`` makes."""
    watching.begin(module.context.executing_eagerly)
    patch(module.Function, "__call__", _calling)
    patch(module.Function, "get_concrete_function", _tracing)


def attach_concrete_functions(module: Any) -> None:
    """Hook ``ConcreteFunction``, which some scripts trace by hand and call."""
    patch(module.ConcreteFunction, "__call__", _calling)


def _tracing(original: Function) -> Function:
    def get_concrete_function(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not watching.is_looked_at():
            return original(function, *args, **kwargs)
        traced = Call()
        with watching.under_way(traced):
            concrete = original(function, *args, **kwargs)
        if traced.trains:
            watching.known_calls[concrete] = traced
        return concrete

    return get_concrete_function


def _calling(original: Function) -> Function:
    def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not watching.is_looked_at():
            return original(function, *args, **kwargs)
        known = watching.known_calls.get(function)
        if known is None:
            known = watching.known_calls[function] = Call()
        with watching.under_way(known):
            if known.trains:
                with watching.training(known.makes_update):
                    return original(function, *args, **kwargs)
            start = now()
            result = original(function, *args, **kwargs)
            automatic.safely(_first_call_is_over, function, known, start, now())
            return result

    return call


def _first_call_is_over(function: Any, call: Call, start_ns: int, end_ns: int) -> None:
    """Of a function that was not known to train: when it was traced now, that is known now."""
    if not call.trains:
        tracker.other_call()
        return
    watching.becomes_trainer()
    name = getattr(getattr(function, "python_function", None), "__name__", "training function")
    training_seen.saw_function(str(name), function)
    if call.fetches:
        training_seen.note_once("input_not_separable", watching.NO_FETCH)
    if call.loops:
        training_notes.warn(
            f"{name} makes several updates in one call: a step that was recorded is such a call"
        )
    tracker.call_ends(start_ns, end_ns, updates=call.makes_update())
    watching.was_trained_on()


# gradients


def attach_gradients(module: Any) -> None:
    """Hook ``GradientTape``."""
    patch(module.GradientTape, "gradient", _taking_gradients)


def _taking_gradients(original: Function) -> Function:
    def gradient(tape: Any, /, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if not automatic.may_look():
            return original(tape, target, sources, *args, **kwargs)
        training_seen.saw_sources(sources)
        if watching.executes_eagerly() and watching.is_looked_at() and not watching.is_replica():
            by_hand = training_seen.updates_by_hand
            with watching.training(by_hand, phase="backward"):
                return original(tape, target, sources, *args, **kwargs)
        automatic.safely(_saw_gradient_in_call)
        return original(tape, target, sources, *args, **kwargs)

    return gradient


def _saw_gradient_in_call() -> None:
    training_seen.saw_strategy(_strategy())
    call = watching.call_of_this()
    if call is not None:
        call.trains = True


def _strategy() -> Any:
    distribute = getattr(sys.modules.get("tensorflow"), "distribute", None)
    if distribute is None or not distribute.has_strategy():
        return None
    return distribute.get_strategy()


# updates, told of by the hooks of optimizers


def update(original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an optimizer's update, at once or as part of a graph."""
    is_eager = watching.executes_eagerly()
    if is_eager:
        training_seen.saw_eager_update()
    if is_eager and watching.is_looked_at():
        start = now()
        result = original(*args, **kwargs)
        automatic.safely(tracker.updated, start, now())
        return result
    automatic.safely(_saw_update_in_call)
    return original(*args, **kwargs)


def _saw_update_in_call() -> None:
    call = watching.call_of_this()
    if call is not None:
        call.updates = True
        call.loops = call.loops or _is_in_loop()


def _is_in_loop() -> bool:
    """Whether the graph that is built is the body of a loop."""
    graph = sys.modules["tensorflow"].compat.v1.get_default_graph()
    while graph is not None:
        # the outermost one may be a plain graph without a name
        name = str(getattr(graph, "name", ""))
        if type(graph).__name__ == "WhileBodyFuncGraph" or "Dataset" in name:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
