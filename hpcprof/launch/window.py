"""Which steps are recorded, and who switches recording on."""

from __future__ import annotations

from typing import NamedTuple

from hpcprof.artifacts.step_range import StepRange

CUDA = "cuda"  # the training calls cuProfilerStart and cuProfilerStop
HOST = "host"  # it tells the launcher, which runs nsys start and nsys stop


class Window(NamedTuple):
    """The steps to record and CUDA or HOST; as text what rank_env.WINDOW holds."""

    steps: StepRange
    mode: str

    def __str__(self) -> str:
        return f"{self.steps},{self.mode}"
