"""What has to begin before the first step."""

from __future__ import annotations

from typing import Any

from hpcprof.annotate import tf_profiler


def attach_profiler(module: Any) -> None:
    """A profile of the memory begins before the model is built."""
    tf_profiler.start_early()
