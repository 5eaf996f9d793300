"""What the hooks of Keras 2 and Keras 3 share: ``fit``, ``evaluate``, ``predict``, the training
function.

In ``fit`` one step is one call of the training function. The batch is fetched here, in Python, so
that the wait for input is told apart, and the training function then runs on an iterator that holds
only this batch: Keras's own code path. The batch goes into the graph as an Optional of TensorFlow's
and is taken out there: so the shapes are those that the data set declares, as before, and where the
data ends, what does not depend on it (a generator's seed moves on) still runs, as before. Numbers
are the same bit for bit. Where a call cannot be divided, it is taken whole, and why is noted.

``train_on_batch`` is a training call of a loop that the user wrote (see ``loops``). ``evaluate``
is the phase ``eval`` and marks no steps.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from typing import Any, Callable, Iterator, NamedTuple, NoReturn

from hpcprof.annotate import automatic, training_notes, training_seen
from hpcprof.annotate.hooks import loops, watching
from hpcprof.annotate.hooks.patching import Function, patch
from hpcprof.annotate.seen_objects import is_compiled, steps_per_execution
from hpcprof.annotate.session import Session
from hpcprof.artifacts import node_time, span_format
from hpcprof.artifacts.training_record import BY_KERAS

_OURS = "_hpcprof_original"
_CALLBACKS = 5  # position among fit's arguments

_now = node_time.monotonic_ns


class Flavor(NamedTuple):
    """What differs between versions of Keras.

    ``why_whole``: why the calls of this model's training function cannot be divided, None when they
    can. ``on_batch``: from model and training function to the function that trains on one batch, an
    Optional.
    """

    why_whole: Callable[[Any], str | None]
    on_batch: Callable[[Any, Function], Function]


class OneBatch:
    """An iterator that holds one batch, given as an Optional."""

    __slots__ = ("_batch", "_is_taken")

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._is_taken = False

    def __iter__(self) -> OneBatch:
        return self

    def __next__(self) -> Any:
        if self._is_taken:
            raise StopIteration
        self._is_taken = True
        return self._batch.get_value()


class _Running(threading.local):
    """Calls of Keras that this thread is in, of whichever model."""

    fits = 0
    is_marked = False  # the outermost of these fits
    evaluations = 0
    is_in_step = False  # an overridden training function may call the one it overrides


_running = _Running()
_marked_fit = threading.Lock()  # held by the fit that is marked: steps of two would mix


def attach(model_class: Any, flavor: Flavor) -> None:
    """Hook a class of models. Raises AttributeError when it is built otherwise."""
    patch(model_class, "make_train_function", functools.partial(_making, flavor, None))
    patch(model_class, "fit", lambda original: _fitting(original, model_class, flavor))
    patch(model_class, "evaluate", lambda original: _beside_steps(original, "eval"))
    patch(model_class, "predict", lambda original: _beside_steps(original, "predict"))


def _making(flavor: Flavor, why_whole: str | None, original: Function) -> Function:
    """Around ``make_train_function``, which keeps what it makes in ``model.train_function``."""

    def make_train_function(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        try:
            function = model.train_function
            if function is None or hasattr(function, _OURS):
                return made
            ours = _TrainingFunction(model, function, flavor, why_whole).as_function()
            model.train_function = ours
        except Exception as error:
            automatic.give_up(error)
            return made
        return ours if made is function else made

    return make_train_function


def _fitting(original: Function, model_class: Any, flavor: Flavor) -> Function:
    def fit(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not automatic.may_look():
            return original(model, *args, **kwargs)
        automatic.safely(_hook_overridden, type(model), model_class, flavor)
        watching.interrupt()
        by_position = args[_CALLBACKS] if len(args) > _CALLBACKS else None
        training_seen.saw_callbacks(kwargs.get("callbacks", by_position))
        with _one_fit():
            return original(model, *args, **kwargs)

    return fit


@contextlib.contextmanager
def _one_fit() -> Iterator[None]:
    """Within this the thread fits; it is marked unless another thread does so already."""
    if not _running.fits:
        _running.is_marked = _marked_fit.acquire(blocking=False)
        if not _running.is_marked:
            training_notes.warn("several threads run fit at once: only steps of one are recorded")
    _running.fits += 1
    try:
        with automatic.hush():
            yield
    finally:
        _running.fits -= 1
        if not _running.fits and _running.is_marked:
            _running.is_marked = False
            _marked_fit.release()


def _hook_overridden(cls: Any, model_class: Any, flavor: Flavor) -> None:
    """A class of the user's that makes its training function in its own way."""
    for each in cls.__mro__:
        if each is model_class:
            return
        if "make_train_function" in vars(each):
            why = f"{each.__name__} overrides make_train_function"
            patch(each, "make_train_function", functools.partial(_making, flavor, why))


def _beside_steps(original: Function, name: str) -> Function:
    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        # in a thread beside the training it keeps no step waiting
        is_of_training = _running.fits > 0 or watching.is_training_thread()
        if _running.evaluations or not is_of_training or not automatic.may_mark():
            return original(model, *args, **kwargs)
        watching.interrupt()
        _running.evaluations += 1
        start = _now()
        try:
            with automatic.hush():
                return original(model, *args, **kwargs)
        finally:
            _running.evaluations -= 1
            kind = span_format.KIND_PHASE if name == "eval" else span_format.KIND_HOST
            automatic.record_beside_steps(name, start, _now(), kind)

    return call


def _at_the_end(on_batch: Function, batch: Any) -> NoReturn:
    """Call it where there is no batch any more: it raises, and Keras is to see what it knows."""
    errors = importlib.import_module("tensorflow").errors
    try:
        on_batch(batch)
    except errors.InvalidArgumentError as error:
        raise errors.OutOfRangeError(error.node_def, error.op, "End of sequence") from None
    # a training step that needs nothing of the batch: it would go on for ever
    raise errors.OutOfRangeError(None, None, "End of sequence")


class _TrainingFunction:
    """The training function of one model."""

    def __init__(
        self, model: Any, function: Function, flavor: Flavor, why_whole: str | None
    ) -> None:
        self._model = model
        self._function = function
        self._flavor = flavor
        self._updates = steps_per_execution(model)
        self._why_whole = why_whole or flavor.why_whole(model)
        self._on_batch: Function | None = None
        self._is_noted = False

    def as_function(self) -> Function:
        """A plain function, as Keras's is: models are copied."""

        def train_function(*args: Any, **kwargs: Any) -> Any:
            if _running.is_in_step or not automatic.may_look():
                return self._function(*args, **kwargs)
            training_seen.saw_model(self._model)
            if not automatic.may_mark() or self._is_coordinated():
                return self._function(*args, **kwargs)
            if not _running.fits:
                return loops.training_call(self._function, args, kwargs)
            current = automatic.marking_session() if _running.is_marked else None
            if current is None:
                return self._function(*args, **kwargs)
            return self._step(current, args, kwargs)

        setattr(train_function, _OURS, self._function)
        return train_function

    def _is_coordinated(self) -> bool:
        """Whether a call only hands the step to other processes: then nothing is seen of it."""
        if getattr(self._model, "_cluster_coordinator", None) is None:
            return False
        training_notes.warn("a cluster coordinator runs the steps elsewhere: none are seen here")
        return True

    def _step(self, current: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_batch = self._divided(args, kwargs)
        if on_batch is None:
            return self._call(current, _now(), self._function, args, kwargs)
        start = _now()
        with automatic.range_of(current, "phase input"):
            batch = args[0].get_next_as_optional()
            is_batch = bool(batch.has_value())
        end = _now()
        if not is_batch:
            _at_the_end(on_batch, batch)
        automatic.record_phase(current, "input", start, end)
        training_seen.saw_batch(batch)
        return self._call(current, end, on_batch, (batch,), {})

    def _call(
        self,
        current: Session,
        start_ns: int,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            step = automatic.AutomaticStep(current, start_ns)
        except Exception as error:
            automatic.give_up(error)
            return function(*args, **kwargs)
        _running.is_in_step = True
        try:
            with automatic.range_of(current, "phase compute"):
                begin = _now()
                result = function(*args, **kwargs)
                end = _now()
        except BaseException:
            automatic.safely(step.cancel)
            raise
        finally:
            _running.is_in_step = False
        automatic.record_phase(current, "compute", begin, end)
        automatic.safely(self._note)
        automatic.safely(step.end, end, self._updates)
        return result

    def _divided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function | None:
        """The function that trains on one batch of this iterator; None: take the call whole."""
        kind = type(args[0]).__name__ if len(args) == 1 and not kwargs else "call of its own kind"
        if self._why_whole is None and kind != "OwnedIterator":
            self._why_whole = f"batches come from a {kind}"
        if self._why_whole is None and self._on_batch is None:
            try:
                self._on_batch = self._flavor.on_batch(self._model, self._function)
                training_seen.saw_function("train_function", self._on_batch)
            except Exception as error:
                self._why_whole = f"the training function could not be divided: {error!r}"
        if self._why_whole is None:
            return self._on_batch
        training_seen.note_once("input_not_separable", self._why_whole)
        return None

    def _note(self) -> None:
        if self._is_noted:
            return
        self._is_noted = True
        training_seen.note_once("steps_by", BY_KERAS)
        training_seen.saw_function("train_function", self._function)
        training_seen.saw_strategy(getattr(self._model, "distribute_strategy", None))
        if is_compiled(self._model):
            training_seen.note_once("phases_not_separable", "jit_compile")
        if self._updates > 1:
            training_notes.warn(
                f"steps_per_execution is {self._updates}: a step that was recorded is a call "
                "of so many updates, and is numbered by the first of them"
            )
