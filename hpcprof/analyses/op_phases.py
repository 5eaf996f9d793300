"""Where does the time inside the compiled step go? From the steps whose operations were named.

1. Of each rank the operations (kind ``op``) of a step are taken from one source only: ranges that
   TensorFlow gave to NVTX where there are any, else tf.profiler's. Never both: they are the same.
2. ``union``: time within the step in which at least one thread ran an operation of the phase. The
   phases overlap each other, so unions need not add up to the step. ``allreduce`` includes the time
   in which a collective was under way, where somebody recorded that.
3. ``sum``: time of all operations of a phase, over all threads. ``other_frac``: share of the sum
   over phases that belongs to no phase; it says how far the naming can be trusted.
4. Medians over steps: those that all ranks named, when there are MIN_STEPS of them; else each rank
   over its own, and then nothing is compared between ranks.
5. What the operations started on a GPU has their phase (readers): ``device_ns`` is the time in
   which at least one such kernel or copy ran, over all named steps by their number. It is not cut
   at the ends of steps: a GPU works on when Python has gone on.
6. A replica (device of a rank under MirroredStrategy) is told by its operations. Launch skew: from
   the first to the last replica that begins its forward pass in a step.

Naming operations costs time itself: ``profiler_overhead`` says how much. Where a GPU computes, an
operation is the launch of its kernels, not their run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hpcprof.analyses.busy_steps import MIN_STEPS
from hpcprof.analyses.intervals import overlap, total, union
from hpcprof.trace import columns as c

KINDS_READ = [c.EXECUTOR_OP, c.COLLECTIVE, c.STEP_KIND]
COLUMNS_READ = [c.START_NS, c.END_NS, c.KIND, c.PHASE, c.STEP, c.REPLICA, c.OP, c.SOURCE]

ON_DEVICE = [c.KERNEL, c.MEMCPY, c.MEMSET]
DEVICE_COLUMNS_READ = [c.START_NS, c.END_NS, c.PHASE, c.SOURCE]

# operations that nobody told apart (one XLA cluster) have the phase ``compute``
PHASES = (
    *(c.INPUT, c.H2D, c.FORWARD, c.BACKWARD, c.ALLREDUCE, c.OPTIMIZER),
    *(c.COMPUTE_PHASE, c.CHECKPOINT, c.EVAL, c.OTHER),
)
BESIDE = (c.CHECKPOINT, c.EVAL)  # operations between two steps do not make the next one named
# a step with fewer operations than this share of the rank's median was not named as a whole
MIN_SHARE_OF_OPS = 0.5
WHOLE = -1  # replica: the rank as a whole


@dataclass(frozen=True)
class OpTimes:
    """Medians per step of one rank, or of one replica of it, in ns; ``steps`` they are over.

    ``union_ns`` and ``sum_ns``: phase → see above. ``launch_ns``: from the start of the step to its
    first forward operation; nan without any.
    """

    rank: int
    replica: int
    source: str
    steps: tuple[int, ...]
    step_ns: float
    launch_ns: float
    union_ns: Mapping[str, float]
    sum_ns: Mapping[str, float]

    @property
    def other_frac(self) -> float:
        """Share of the operations' time that belongs to no phase; nan without operations."""
        whole = sum(self.sum_ns.values())
        return self.sum_ns[c.OTHER] / whole if whole else float("nan")


@dataclass(frozen=True)
class OpPhases:
    """``ranks``: those that named operations, ascending; nothing is there when none did.

    ``steps``: named by all of them; () when these are too few to compare. ``share_frac``: phase →
    median over ranks of union over step. ``spread_frac``: largest minus smallest rank, over the
    step; {} unless every rank of the job named ``steps``. ``replicas``: of ranks that have several.
    ``launch_skew_ns``: rank → median over steps. ``device_ns``: rank → phase → mean per step, of
    the ranks on whose GPU something ran for a named operation, and of the phases that had any.
    """

    ranks: tuple[OpTimes, ...] = ()
    steps: tuple[int, ...] = ()
    share_frac: Mapping[str, float] = field(default_factory=dict)
    spread_frac: Mapping[str, float] = field(default_factory=dict)
    other_frac: float = float("nan")
    replicas: tuple[OpTimes, ...] = ()
    launch_skew_ns: Mapping[int, float] = field(default_factory=dict)
    device_ns: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedWindows:
    """Rank → first and last step in which TensorFlow named its operations to NVTX (``nvtx``), and
    in which tf.profiler recorded them (``tf_profiler``). Ranks without are absent.
    """

    nvtx: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    tf_profiler: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def steps(self) -> set[int]:
        """All steps in which either was at work on any rank."""
        windows = [*self.nvtx.values(), *self.tf_profiler.values()]
        return {step for first, last in windows for step in range(first, last + 1)}


def per_rank(spans: pd.DataFrame) -> pd.DataFrame:
    """One row per named step, and one more per replica where there are several.

    Indexed by ``step``: replica (WHOLE for the rank), source, step_ns, launch_ns (nan without
    forward), and of each phase <phase>_ns (union) and <phase>_sum_ns. Empty without operations.
    """
    steps = _step_bounds(spans)
    ops = _one_source(spans[(spans[c.KIND] == c.EXECUTOR_OP) & spans[c.STEP].isin(steps.index)])
    steps = steps[steps.index.isin(ops[c.STEP])]
    is_allreduce = (spans[c.KIND] == c.COLLECTIVE) & (spans[c.OP] == "allreduce")
    tables = [_times(steps, ops, spans[is_allreduce], WHOLE)]
    replicas = sorted(int(number) for number in ops[c.REPLICA].dropna().unique())
    if len(replicas) > 1:
        nothing = spans.head(0)  # a collective is nobody's alone
        tables += [_times(steps, ops[ops[c.REPLICA] == n], nothing, n) for n in replicas]
    frame: pd.DataFrame = pd.concat(tables)
    return frame


def device_times(on_device: pd.DataFrame, frame: pd.DataFrame) -> dict[str, float]:
    """Phase → ns per named step in which the GPU ran something of it; {} when nothing ran.

    ``on_device``: spans of the kinds ON_DEVICE with a phase; ``frame``: of ``per_rank``.
    """
    whole = frame[frame["replica"] == WHOLE]
    is_nvtx = (on_device[c.SOURCE] != c.TF_PROFILE).to_numpy(dtype=bool)
    if is_nvtx.any():
        on_device, whole = on_device[is_nvtx], whole[whole["source"] != c.TF_PROFILE]
    found = {}
    for phase in PHASES:
        rows = on_device[on_device[c.PHASE] == phase]
        if len(rows) and len(whole):
            covered = union(rows[c.START_NS].to_numpy(np.int64), rows[c.END_NS].to_numpy(np.int64))
            found[phase] = total(covered) / len(whole)
    return found


def across_ranks(
    frames: Mapping[int, pd.DataFrame],
    expected: int,
    busy: Collection[int] = (),
    device_ns: Mapping[int, Mapping[str, float]] | None = None,
) -> OpPhases:
    """Put the frames of ``per_rank`` together. ``expected``: ranks of the job.

    ``busy``: steps to leave out (busy_steps.py). ``device_ns``: rank → ``device_times``.
    """
    usable = {rank: frame[~frame.index.isin(list(busy))] for rank, frame in frames.items()}
    usable = {rank: frame for rank, frame in sorted(usable.items()) if len(frame)}
    if not usable:
        return OpPhases()
    common = set.intersection(*(set(frame.index) for frame in usable.values()))
    are_compared = len(common) >= MIN_STEPS
    if are_compared:
        usable = {rank: frame[frame.index.isin(common)] for rank, frame in usable.items()}
    found = [_medians(rank, part) for rank, frame in usable.items() for part in _by_replica(frame)]
    ranks = tuple(times for times in found if times.replica == WHOLE)
    shares = {name: [times.union_ns[name] / times.step_ns for times in ranks] for name in PHASES}
    is_whole_job = are_compared and len(ranks) == expected > 1
    return OpPhases(
        ranks=ranks,
        steps=tuple(sorted(int(step) for step in common)) if are_compared else (),
        share_frac={name: float(np.median(values)) for name, values in shares.items()},
        spread_frac={name: max(v) - min(v) for name, v in shares.items()} if is_whole_job else {},
        other_frac=float(np.median([times.other_frac for times in ranks])),
        replicas=tuple(times for times in found if times.replica != WHOLE),
        launch_skew_ns={
            rank: skew for rank, frame in usable.items() for skew in _launch_skew(frame)
        },
        device_ns={rank: times for rank, times in (device_ns or {}).items() if times},
    )


def _step_bounds(spans: pd.DataFrame) -> pd.DataFrame:
    rows = spans[(spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna()]
    grouped = rows.groupby(rows[c.STEP].astype("int64"), sort=True)
    bounds: pd.DataFrame = pd.DataFrame(
        {c.START_NS: grouped[c.START_NS].min(), c.END_NS: grouped[c.END_NS].max()}
    )
    bounds.index.name = "step"
    bounds = bounds[bounds[c.END_NS] > bounds[c.START_NS]]
    return bounds


def _one_source(ops: pd.DataFrame) -> pd.DataFrame:
    """Of each step the operations of one source; steps that were not named as a whole are left out.

    STEP becomes int64, PHASE is OTHER where there was none.
    """
    is_nvtx = (ops[c.SOURCE] != c.TF_PROFILE).to_numpy(dtype=bool)
    step = ops[c.STEP].to_numpy(dtype=np.int64)
    chosen = ops[is_nvtx | ~np.isin(step, step[is_nvtx])]
    of_step = chosen[~chosen[c.PHASE].isin(BESIDE)]
    counts = of_step.groupby(of_step[c.STEP].astype("int64")).size()
    whole = counts.index[counts >= MIN_SHARE_OF_OPS * counts.median()] if len(counts) else []
    kept = chosen[chosen[c.STEP].isin(whole)]
    named: pd.DataFrame = kept.assign(
        **{c.STEP: kept[c.STEP].astype("int64"), c.PHASE: kept[c.PHASE].fillna(c.OTHER)}
    )
    return named


def _times(
    steps: pd.DataFrame, ops: pd.DataFrame, collectives: pd.DataFrame, replica: int
) -> pd.DataFrame:
    starts, ends = (steps[name].to_numpy(np.int64) for name in (c.START_NS, c.END_NS))
    by_step = ops.groupby(c.STEP)
    forward = ops[ops[c.PHASE] == c.FORWARD].groupby(c.STEP)[c.START_NS].min()
    table: pd.DataFrame = pd.DataFrame(
        {
            "replica": replica,
            "source": by_step[c.SOURCE].first().reindex(steps.index).astype(object),
            "step_ns": ends - starts,
            "launch_ns": forward.reindex(steps.index).to_numpy(np.float64) - starts,
        },
        index=steps.index,
    )
    length = ops[c.END_NS] - ops[c.START_NS]
    for phase in PHASES:
        is_phase = ops[c.PHASE] == phase
        rows = ops[is_phase]
        if phase == c.ALLREDUCE:
            rows = pd.concat([rows, collectives])
        covered = union(rows[c.START_NS].to_numpy(np.int64), rows[c.END_NS].to_numpy(np.int64))
        table[f"{phase}_ns"] = overlap(covered, starts, ends)
        added = length[is_phase].groupby(ops.loc[is_phase, c.STEP]).sum()
        table[f"{phase}_sum_ns"] = added.reindex(steps.index, fill_value=0).to_numpy(np.int64)
    return table


def _by_replica(frame: pd.DataFrame) -> list[pd.DataFrame]:
    return [part for _, part in frame.groupby("replica", sort=True)]


def _medians(rank: int, frame: pd.DataFrame) -> OpTimes:
    medians = frame.drop(columns=["replica", "source"]).median()
    return OpTimes(
        rank=rank,
        replica=int(frame["replica"].iloc[0]),
        source=" + ".join(sorted(set(frame["source"].dropna()))),
        steps=tuple(int(step) for step in frame.index),
        step_ns=float(medians["step_ns"]),
        launch_ns=float(medians["launch_ns"]),
        union_ns={phase: float(medians[f"{phase}_ns"]) for phase in PHASES},
        sum_ns={phase: float(medians[f"{phase}_sum_ns"]) for phase in PHASES},
    )


def _launch_skew(frame: pd.DataFrame) -> list[float]:
    """Median over steps, [] where there are not several replicas."""
    launches = frame.loc[frame["replica"] != WHOLE, "launch_ns"].dropna()
    by_step = launches.groupby(level=0)
    several = by_step.size() > 1
    if not several.any():
        return []
    skew = (by_step.max() - by_step.min())[several]
    return [float(skew.median())]
