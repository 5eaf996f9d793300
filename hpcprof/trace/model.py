"""``Trace``: what the readers found of one rank, and the records that go with it.

Holds only what readers gave, aligned or not; numbers derived from it live in results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.trace.frame import empty_counters

USABLE_STATES = (manifest.OK, manifest.PARTIAL)


class Moment(NamedTuple):
    """One instant on two clocks of a node, read one right after the other."""

    realtime_ns: int
    monotonic_ns: int


@dataclass(frozen=True)
class SourceState:
    """What one source ("spans" or "nsys") gave for a rank.

    ``state`` is one of artifacts.manifest.STATES; ``reason`` says why it is not OK ("" when it
    is). ``rows`` counts the spans kept. ``first_step`` and ``last_step`` are None when no span
    belongs to a step. ``clock_bound_ns``: how far the source's times may be off the node's clock;
    None when they could not be placed.
    """

    name: str
    state: str
    reason: str = ""
    rows: int = 0
    first_step: int | None = None
    last_step: int | None = None
    clock_bound_ns: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether spans of this source are in the trace."""
        return self.state in USABLE_STATES


@dataclass(frozen=True)
class RankInfo:
    """Who a rank was and what is known of its recording.

    ``pid`` and ``exit_code`` are None when unknown; ``ended`` is None for a rank that was killed
    together with its launcher. ``state`` sums the sources up; ``sources`` is keyed by their name.
    ``started`` and ``ended`` stay on the node's clocks when the spans are aligned.
    """

    rank: int
    local_rank: int
    node: str
    world_size: int
    pid: int | None = None
    exit_code: int | None = None
    started: Moment | None = None
    ended: Moment | None = None
    state: str = manifest.OK
    reason: str = ""
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobInfo:
    """One job. ``world_size`` is what was asked for; ``nodes`` is sorted, known ranks only."""

    name: str
    job_id: str
    strategy: str
    world_size: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """Spans and counters of one rank; the columns are those of ``trace.columns``."""

    rank: RankInfo
    spans: pd.DataFrame
    counters: pd.DataFrame = field(default_factory=empty_counters)
