"""Marks steps and phases of a running training.

    from hpcprof import annotate

    for images, labels in annotate.data(dataset):
        with annotate.step():
            with annotate.phase("forward"):
                ...

For Keras's ``fit``: ``callbacks=[annotate.keras.Profile()]``. ``phase``, ``span`` and ``step`` are
decorators too. Where hooks attach (``hpcprof.annotate.hooks``), none of this is needed.

Active only when ``hpcprof launch`` started the process; otherwise every call returns at once.
Standard library only. Nothing here ever raises into the training because of recording.
"""

from __future__ import annotations

__all__ = [
    "beacon",
    "close",
    "data",
    "is_active",
    "now_ns",
    "phase",
    "record_phase",
    "span",
    "step",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpcprof.annotate import keras as keras
    from hpcprof.annotate.calls import (
        beacon,
        close,
        data,
        is_active,
        now_ns,
        phase,
        record_phase,
        span,
        step,
    )


def __getattr__(name: str) -> object:
    """Load the calls at the first one: ``startup`` is imported in Pythons that never make one."""
    if name == "keras":  # annotate.keras.Profile() without an import of its own
        from importlib import import_module

        return import_module("hpcprof.annotate.keras")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcprof.annotate import calls

    for each in __all__:
        globals()[each] = getattr(calls, each)
    return globals()[name]
