"""Looks for mistakes that make a training wrong, in its first steps: says one, notes the others.

Whether the ranks train one model can only be seen by comparing them. Nothing is sent between them
for that: each writes down what it asked of Horovod and short sums of its weights after a few steps,
and ``hpcprof collect`` compares. During the job only what one rank sees by itself is said.

The hooks tell what they saw (``saw_variables``, ``saw_batch``). Weights are read between steps, and
not while a profiler records. Nothing here raises, and no collective is ever added.
"""

from __future__ import annotations

import os
from typing import Any, Iterable

from hpcprof.annotate import guards_digests, horovod_calls, training_notes
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.notes import leave_note, say
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.step_range import StepRange

LOOKS = (2, 5, 50)  # after so many steps, or the first one later that nobody records
_SAY_AFTER = 5
_BATCHES = 3

_variables: list[Any] = []  # those looked at
_is_done_looking = False
_first_batches: list[str] = []


def wanted() -> Follower | None:
    """None when TensorFlow and Horovod are left as they are: then nothing is seen of them."""
    if os.environ.get(rank_env.HOOKS) == "0":
        return None
    return _Guards(_recorded_steps())


def saw_variables(variables: Iterable[Any]) -> None:
    """The trainable variables that an optimizer updates; those of the first one are looked at."""
    global _variables
    if _variables or _is_done_looking:
        return
    try:
        _variables = guards_digests.chosen(variables)
    except Exception as error:  # whatever these variables are, the training knows
        _note_failure("weights", error)


def saw_batch(element: Any) -> None:
    """A batch of the training as it was fetched; after three this does nothing."""
    if len(_first_batches) >= _BATCHES:
        return
    try:
        digest = guards_digests.batch_digest(element)
    except Exception as error:
        digest = ""
        _note_failure("first batches", error)
    _first_batches.append(digest)
    if all(_first_batches):
        training_notes.put(first_batches=list(_first_batches))


class _Guards:
    """The follower. ``recorded``: steps in which a profiler may be at work."""

    def __init__(self, recorded: list[StepRange]) -> None:
        self._recorded = recorded
        self._ended = 0
        self._due = list(LOOKS)
        self._sums: list[dict[str, Any]] = []

    def step_begins(self, number: int) -> bool:
        return False

    def step_ended(self, number: int) -> bool:
        self._ended += 1
        try:
            if self._ended == _SAY_AFTER:
                _say_what_is_wrong()
            if self._due and self._ended >= self._due[0] and not self._is_recorded(number):
                self._due = [due for due in self._due if due > self._ended]
                self._look(number)
        except Exception as error:
            self._due = []
            _look_no_more()
            _note_failure("weights", error)
        return False

    def close(self, number: int) -> None:
        """Note what Horovod was asked for in all; reads no weights, the training is going away."""
        try:
            _note_horovod()
        except Exception as error:
            _note_failure("calls of Horovod", error)

    def _is_recorded(self, number: int) -> bool:
        return any(steps.first <= number + 1 and number <= steps.last for steps in self._recorded)

    def _look(self, number: int) -> None:
        if _note_horovod() <= 1:
            return
        for variable in _variables:
            name = guards_digests.variable_name(variable)
            value = guards_digests.weight_sum(variable)
            self._sums.append({"step": number, "variable": name, "value": value})
        training_notes.put(checksums=list(self._sums))
        training_notes.write()
        if not self._due:
            _look_no_more()


def _note_horovod() -> int:
    """Horovod's size; 0 when it is not initialised."""
    horovod = horovod_calls.description()
    if horovod is None:
        return 0
    training_notes.put(horovod=horovod)
    return int(horovod["size"])


def _say_what_is_wrong() -> None:
    """On stderr of rank 0: all ranks run the same script, and one of them is enough."""
    known, counts = horovod_calls.size_and_rank(), horovod_calls.counts()
    if known is None or counts is None or known[0] <= 1 or known[1] != 0:
        return
    exchanged = (horovod_calls.GRADIENTS, horovod_calls.ALLREDUCES, horovod_calls.GATHERS)
    trains = _variables or counts[horovod_calls.OPTIMIZERS] or counts[horovod_calls.TAPES]
    if not trains or any(counts[name] for name in exchanged):
        return
    say(
        f"NO_GRADIENT_SYNC: {_SAY_AFTER} steps are over and Horovod was given no gradient to "
        f"average between its {known[0]} ranks: each trains a model of its own, unless the script "
        f"averages by other means. {_cure()} (hpcprof collect compares the ranks' weights)"
    )


def _cure() -> str:
    keras = horovod_calls.version("keras")
    if keras.startswith("3.") and not horovod_calls.version("tf_keras"):
        return (
            f"Horovod {horovod_calls.version('horovod')} knows Keras 2 only, and this is Keras "
            f"{keras}: install tf-keras and set TF_USE_LEGACY_KERAS=1, or average the gradients in "
            "a loop of your own with hvd.allreduce."
        )
    return (
        "Give the optimizer to hvd.DistributedOptimizer (and compile the model with what that "
        "returns), or the tape to hvd.DistributedGradientTape."
    )


def _recorded_steps() -> list[StepRange]:
    """Steps of the windows of nsys, of operations' names and of tf.profiler."""
    found = []
    for name in (rank_env.WINDOW, rank_env.OP_STEPS, rank_env.TF_STEPS):
        text = os.environ.get(name, "").partition(",")[0]
        try:
            found.append(StepRange.from_text(text))
        except ValueError:
            continue  # none, or none that makes sense; whoever records says so
    return found


def _look_no_more() -> None:
    """Hold no memory of the training's any longer than needed."""
    global _variables, _is_done_looking
    _variables, _is_done_looking = [], True


def _note_failure(what: str, error: Exception) -> None:
    leave_note(f"the {what} of this rank are not compared with others: {error!r}")
