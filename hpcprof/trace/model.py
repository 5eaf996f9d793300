"""``Trace``: what the readers found of one rank, and the records that go with it.

Holds only what readers gave, aligned or not; numbers derived from it live in results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.trace.frame import empty_counters

USABLE_STATES = (manifest.OK, manifest.PARTIAL)


class Moment(NamedTuple):
    """One instant on two clocks of a node, read one right after the other."""

    realtime_ns: int
    monotonic_ns: int


class Gpu(NamedTuple):
    """One GPU that a rank sees. ``visible`` is CUDA's number of it in that process.

    ``uuid`` and ``name`` are None where it is not certain which GPU of the node it is.
    """

    visible: int
    uuid: str | None
    name: str | None


class Hang(NamedTuple):
    """No step for ``seconds``, as somebody noticed at ``at_ns``, CLOCK_MONOTONIC of the node.

    ``step`` is the last one that had ended then: -1 for none, None when nobody knows.
    ``has_stacks``: the rank's stacks.txt was written; not when it was noticed from outside only.
    """

    step: int | None
    seconds: float
    at_ns: int | None = None
    has_stacks: bool = True


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
class Training:
    """What the hooks saw of a rank's training; the fields of ``artifacts.training_record``.

    None, (), {} and 0 where nobody looked, or could. ``steps``: that had ended at the last look.
    ``variables``: (name, bytes, role, is trainable). ``checksums``: (step, variable, value).
    ``memory``: per device (step, bytes given away then, most bytes until then).
    """

    steps: int = 0
    steps_by: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    input_not_separable: str | None = None
    phases_not_separable: str | None = None
    strategy: str | None = None
    replicas: int | None = None
    model_name: str | None = None
    layers: tuple[str, ...] = ()
    optimizer: str | None = None
    optimizer_scopes: tuple[str, ...] = ()
    variables: tuple[tuple[str, int, str, bool], ...] = ()
    batch_size: int | None = None
    first_batches: tuple[str, ...] = ()
    horovod: Mapping[str, Any] | None = None
    callbacks: tuple[str, ...] = ()
    profile_batch: str | None = None
    traces: Mapping[str, int] = field(default_factory=dict)
    eager_steps: int = 0
    checksums: tuple[tuple[int, str, str], ...] = ()
    op_origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    op_steps: str | None = None
    tf_steps: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankInfo:
    """Who a rank was and what is known of its recording.

    ``pid`` and ``exit_code`` are None when unknown; ``ended`` is None for a rank that was killed
    together with its launcher. ``state`` sums the sources up; ``sources`` is keyed by their name.
    ``started`` and ``ended`` stay on the node's clocks when the spans are aligned. ``gpus``: those
    the rank sees, () for none; None when nobody could tell. ``horovod_size``: hvd.size(); None
    when it was not asked. ``hangs``: oldest first. ``training``: None when no hook saw any.
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
    gpus: tuple[Gpu, ...] | None = None
    horovod_size: int | None = None
    hangs: tuple[Hang, ...] = ()
    training: Training | None = None


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
