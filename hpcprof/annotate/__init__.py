"""Marks steps and phases of a running training.

    from hpcprof import annotate

    for images, labels in annotate.data(dataset):
        with annotate.step():
            with annotate.phase("forward"):
                ...

Active only when ``hpcprof launch`` started the process; otherwise every call returns at once.
Standard library only. Nothing here ever raises into the training because of recording.
"""

from __future__ import annotations

from hpcprof.annotate.session import (
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
