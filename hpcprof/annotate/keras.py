"""A callback for Keras's ``fit`` and ``evaluate``, for where hooks are off or cannot attach.

    model.fit(dataset, callbacks=[annotate.keras.Profile()])

Sees less than hooks do: Keras tells a callback when a batch begins and ends, and fetches the batch
in between, so that the wait for input is part of the step and is not told apart.
"""

from __future__ import annotations

from typing import Any, Callable

from hpcprof.annotate import automatic, calls, session, training_notes
from hpcprof.artifacts import node_time

_NOT_SEPARABLE = "annotate.keras.Profile sees the calls of the training function only"

_now = node_time.monotonic_ns


def _nothing(*args: object, **kwargs: object) -> None:
    """What a callback does at the moments that are of no interest."""


_nothing._is_default = True  # type: ignore[attr-defined]  # Keras need not wait for it


class Profile:
    """Marks one step per batch, and evaluations as phase ``eval``; nothing without the launcher.

    A callback of Keras 2 and 3 by its methods and not by its class, which is another in each.
    With ``steps_per_execution`` a batch stands for so many steps and bears the number of the first.
    While it is in use hooks mark no steps.
    """

    _supports_tf_logs = True  # logs are not looked at, so none need be fetched from the GPU

    def __init__(self) -> None:
        self._number = 0
        self._batch = 0
        self._start_ns: int | None = None  # of the step that is open
        self._eval_start_ns = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def set_params(self, params: Any) -> None:
        """Nothing of it is needed."""

    def set_model(self, model: Any) -> None:
        """Nothing of it is needed."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        current = session.current(marks_steps=True)
        if current is None:
            return
        automatic.leave_to_script()
        if self._start_ns is not None:  # an exception ended it
            current.pop()
        self._number = current.next_step
        self._batch = batch
        current.begin_step(self._number)
        current.push_step(self._number)
        self._start_ns = _now()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """It is over."""
        current, start_ns = session.current(), self._start_ns
        self._start_ns = None
        if current is not None and start_ns is not None:
            end_ns = _now()
            if training_notes.seen("input_not_separable") is None:
                training_notes.put(input_not_separable=_NOT_SEPARABLE)
            current.pop()
            current.end_step(start_ns, end_ns, self._number, max(1, batch - self._batch + 1))

    def on_test_begin(self, logs: Any = None) -> None:
        """An evaluation begins, in ``fit`` or by itself."""
        self._eval_start_ns = _now()

    def on_test_end(self, logs: Any = None) -> None:
        """It is over."""
        if session.is_opened():
            calls.record_phase("eval", self._eval_start_ns, _now())

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
