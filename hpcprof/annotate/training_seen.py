"""What hooks saw of the training: model, optimizer, functions, batches; for ``training.json``.

Hooks call the ``saw_*`` functions, which keep weak references and cost little; a follower of the
session describes what is there after the first step, a few later ones and at the end. Nothing here
raises into the training, and nothing is imported that the training did not load.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable

from hpcprof.annotate import guards, seen_objects, training_notes
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.notes import leave_note

_LONGEST_ACCUMULATION = 64  # calls that take gradients before the first update; usual are 2 to 32
_DESCRIBED_AFTER = (1, 5, 50)  # steps; as session writes the notes then

Reference = Callable[[], Any]  # to the object, None when it is gone


def _nothing() -> None:
    return None


_is_looking = False
_model: Reference = _nothing
_optimizer: Reference = _nothing
_sources: list[Reference] = []  # what gradients were taken of, in a loop without a model
_functions: dict[str, Reference] = {}
_batches = 0
_is_optimizer_made = False
_gradients_in_vain = 0  # calls that took gradients, while none was applied
_eager_updates = 0


def begin() -> None:
    """Hooks look at this process."""
    global _is_looking
    _is_looking = True


def is_looking() -> bool:
    """Whether hooks look at this process; where none does, nothing is known of the training."""
    return _is_looking


def wanted() -> Follower | None:
    """None when no hook looks."""
    return _Describing() if _is_looking else None


def _reference(value: Any) -> Reference:
    try:
        return weakref.ref(value)
    except TypeError:  # a class that allows none: kept, as the training keeps it anyway
        return lambda: value


def saw_model(model: Any) -> None:
    """The Keras model that trains."""
    global _model
    if _model() is not model:
        _model = _reference(model)


def saw_optimizer(optimizer: Any) -> None:
    """An optimizer applied gradients; the last one seen is described."""
    global _optimizer
    if _optimizer() is not optimizer:
        _optimizer = _reference(optimizer)


def optimizer_was_made() -> None:
    """The script made an optimizer; it will probably use it."""
    global _is_optimizer_made
    _is_optimizer_made = True


def updates_by_hand() -> bool:
    """Whether a gradient just taken is taken for an update: no optimizer makes them here.

    One that was made but never used (by a model that is not trained) is waited for so long as an
    accumulation of gradients may last.
    """
    global _gradients_in_vain
    if _optimizer() is not None:
        return False
    _gradients_in_vain += 1
    return not _is_optimizer_made or _gradients_in_vain > _LONGEST_ACCUMULATION


def saw_sources(sources: Any) -> None:
    """What a gradient was taken of, at trace time or in an eager step."""
    if _sources:
        return

    def keep() -> None:
        variables = [each for each in _flat(sources) if getattr(each, "trainable", False)]
        _sources.extend(map(_reference, variables))
        if variables:
            guards.saw_variables(variables)

    _safely(keep)


def saw_function(name: str, function: Any) -> None:
    """A training function; how often it is traced is of interest."""
    if name not in _functions:
        _functions[name] = _reference(function)


def saw_eager_update() -> None:
    """An update was made outside of any ``tf.function``."""
    global _eager_updates
    _eager_updates += 1


def saw_batch(element: Any) -> None:
    """A batch of the training, as it was fetched outside of the graph."""
    global _batches
    if _is_looking and _batches < 3:  # as many as guards look at
        _batches += 1
        _safely(lambda: _look_at_batch(element))


def _look_at_batch(element: Any) -> None:
    if hasattr(element, "get_value"):  # an Optional
        element = element.get_value()
    guards.saw_batch(element)
    if _batches == 1:
        training_notes.put(batch_size=seen_objects.batch_size(_flat(element)))


def saw_strategy(strategy: Any) -> None:
    """The tf.distribute strategy under which a gradient was taken, the default one left out."""
    is_default = type(strategy).__name__ == "_DefaultDistributionStrategy"
    if strategy is not None and not is_default and training_notes.seen("strategy") is None:
        _safely(lambda: training_notes.put(**seen_objects.strategy_fields(strategy)))


def saw_callbacks(callbacks: Any) -> None:
    """The callbacks given to Keras's fit: None, one, a list, or Keras's own kind of list."""
    _safely(lambda: training_notes.put(**seen_objects.callback_fields(callbacks)))


def note_once(field: str, text: str) -> None:
    """Say why something is not told apart; the first reason stays."""
    if training_notes.seen(field) is None:
        training_notes.put(**{field: text})


def _flat(structure: Any) -> list[Any]:
    tf = sys.modules.get("tensorflow")
    flat: list[Any] = [structure] if tf is None else tf.nest.flatten(structure)
    return flat


def _safely(look: Callable[[], None]) -> None:
    try:
        look()
    except Exception as error:  # whatever the training has there, it works without hpcprof
        training_notes.warn(f"hooks could not describe the training: {error!r}")


class _Describing:
    """The follower."""

    def __init__(self) -> None:
        self._ended = 0
        self._has_failed = False

    def step_begins(self, number: int) -> bool:
        return False

    def step_ended(self, number: int) -> bool:
        self._ended += 1
        if self._ended in _DESCRIBED_AFTER:
            self._describe()
        return False

    def close(self, number: int) -> None:
        self._describe(objects=False)  # variables may be gone with the training's end

    def _describe(self, *, objects: bool = True) -> None:
        try:
            training_notes.put(versions=seen_objects.versions(), eager_steps=_eager_updates)
            training_notes.put(traces=seen_objects.traces(_functions))
            if objects:
                _describe_objects()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                leave_note(f"hooks could not describe the training: {error!r}")


def _describe_objects() -> None:
    model, optimizer = _model(), _optimizer()
    if model is not None:
        _safely(lambda: training_notes.put(model=seen_objects.model_fields(model)))
        _safely(lambda: guards.saw_variables(model.trainable_variables))
        if seen_objects.is_compiled(model):
            note_once("phases_not_separable", "jit_compile")
    elif any(seen_objects.is_compiled(function()) for function in _functions.values()):
        note_once("phases_not_separable", "jit_compile")
    if optimizer is not None:
        _safely(lambda: training_notes.put(optimizer=seen_objects.optimizer_fields(optimizer)))
    sources = [each() for each in _sources]
    _safely(lambda: training_notes.put(variables=seen_objects.variables(model, optimizer, sources)))
