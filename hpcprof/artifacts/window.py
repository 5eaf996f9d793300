"""Which steps are recorded, and who switches recording on: told by launch, obeyed by annotate."""

from __future__ import annotations

from typing import NamedTuple

from hpcprof.artifacts.step_range import StepRange

CUDA = "cuda"  # the training calls cuProfilerStart and cuProfilerStop
HOST = "host"  # it tells the launcher, which runs nsys start and nsys stop


class Window(NamedTuple):
    """The steps to record and CUDA or HOST; as text what rank_env.WINDOW holds."""

    steps: StepRange
    mode: str

    @classmethod
    def from_text(cls, text: str) -> Window:
        """Read ``20-59,cuda``. Raises ValueError."""
        steps, _, mode = text.partition(",")
        if mode not in (CUDA, HOST):
            raise ValueError(f"{text!r} has neither mode {CUDA} nor {HOST}")
        return cls(StepRange.from_text(steps), mode)

    def __str__(self) -> str:
        return f"{self.steps},{self.mode}"
