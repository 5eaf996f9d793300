"""When was each rank ready for the last collective of a step, and what did it do until then?

Clock-free (algorithms, section 3): both ends of every length are read on the rank's own clock, so
no alignment error can accuse anybody. For step k of one rank

    arrival  from the end of the last collective of step k-1 to the start of the last one of step k
    sync     from there to the end of the last collective of step k: wait for others, then transfer

so arrival + sync is the step, and it ends at the same moment for everyone. ``arrival`` is cut into
disjoint pieces by phase, in the order of ``PIECES``; what no phase covers is ``host``. Of a
compiled training function only the call is known in every step: piece ``compute``. In the few steps
in which TensorFlow named its operations ``named_steps`` tells the parts of that call apart.

A step may wait before its last collective too, and be equal to the others' when it comes to that:
where it averages the loss after the gradients. Such waits (``_earlier_waits``) are sync as well.

Assumes that collectives of one step all belong to it (no pipelining over steps). What makes it
wrong: a collective inside the forward pass (SyncBatchNorm) equalises ranks before the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.intervals import Union, overlap, subtract, union
from hpcprof.trace import columns as c

Int64s = npt.NDArray[np.int64]

# in order of priority: an instant covered by two phases counts for the first
AROUND_COMPUTE = (c.INPUT, c.H2D, c.CHECKPOINT, c.EVAL)
INSIDE_COMPUTE = (c.FORWARD, c.BACKWARD, c.OPTIMIZER)  # what operations are told apart into
PIECES = (*AROUND_COMPUTE, *INSIDE_COMPUTE, c.COMPUTE_PHASE)
HOST = "host"
ALL_PIECES = (*PIECES, HOST)

# which spans are taken for the collectives of a job, finest first
PROFILER, MARKED, NONE = "profiler", "marked", "none"
# for ranks without any: the end of each step stands for its last collective, and waits for nobody.
# Tells where the step of a rank goes, and nothing of one rank against another
STEP_ENDS = "steps"

# what is read of a rank: all else, most of a profiled rank, plays no part here
KINDS_READ = [c.PHASE_KIND, c.COLLECTIVE, c.BUSY, c.EXECUTOR_OP, c.STEP_KIND]
COLUMNS_READ = [
    *(c.START_NS, c.END_NS, c.KIND, c.NAME),
    *(c.ACTIVITY, c.PHASE, c.STEP, c.BYTES, c.OP),
]
_SCALAR_BYTES = 8
_MAY_WAIT = "may_wait"
_TF_COLLECTIVE = ":Collective"  # in names of TensorFlow's own, "path:type"


def collective_forms(spans: pd.DataFrame) -> set[str]:
    """Forms in which this rank's collectives were recorded within steps.

    ``profiler``: one span per tensor as the profiler saw it (Horovod's NVTX); ``marked``: the
    phase that the training script marked as allreduce.
    """
    return {form for form in (PROFILER, MARKED) if is_collective(spans, form).any()}


def is_collective(spans: pd.DataFrame, form: str) -> pd.Series[bool]:
    """Which spans are the allreduces of this ``form`` (PROFILER or MARKED) within steps.

    With STEP_ENDS the steps themselves.
    """
    if form == STEP_ENDS:
        steps: pd.Series[bool] = (spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna()
        return steps
    if form == PROFILER:
        chosen = (spans[c.KIND] == c.COLLECTIVE) & (spans[c.OP] == "allreduce")
    else:
        # an operation of that phase only hands tensors over: no rank waits in it
        chosen = (spans[c.KIND] == c.PHASE_KIND) & (spans[c.PHASE] == c.ALLREDUCE)
    in_step: pd.Series[bool] = chosen & spans[c.STEP].notna()
    return in_step


def per_rank(spans: pd.DataFrame, form: str) -> pd.DataFrame:
    """A row per step, by its number: arrival_ns, sync_ns, end_ns, bytes, <piece>_ns, stride.

    The first step has no collective before it and gets no row, nor has a step whose predecessor
    is missing (``steps_before``). ``stride``: how many steps of the training the row is of; more
    than one where a call makes several, or where gradients are averaged every so many steps. An
    empty frame when there is no collective of this ``form``.
    """
    return _cut(spans, form, [(piece, c.PHASE_KIND) for piece in PIECES])


def named_steps(spans: pd.DataFrame, form: str) -> pd.DataFrame:
    """Like ``per_rank``, of the steps whose operations were named: these tell the pieces apart.

    Forward, backward and optimizer are the time in which any thread ran such an operation;
    ``compute`` is what they leave of the call. No row where nothing was named. A step counts when
    that before it was named too: its optimizer is part of the way to the collective.
    """
    ways = [
        *((piece, c.PHASE_KIND) for piece in AROUND_COMPUTE),
        *((piece, c.EXECUTOR_OP) for piece in INSIDE_COMPUTE),
        *((piece, c.PHASE_KIND) for piece in (*INSIDE_COMPUTE, c.COMPUTE_PHASE)),
    ]
    is_named = (spans[c.KIND] == c.EXECUTOR_OP) & spans[c.PHASE].isin(INSIDE_COMPUTE)
    steps = np.unique(spans.loc[is_named, c.STEP].dropna().to_numpy(dtype=np.int64))
    before = steps_before(steps, spans)
    is_told = np.isin(before, steps)
    steps, before = steps[is_told], before[is_told]
    first, last = (before[0], steps[-1]) if steps.size else (0, -1)
    near = spans[spans[c.STEP].between(first, last) | spans[c.STEP].isna()]
    frame = _cut(near, form, ways)
    told_apart: pd.DataFrame = frame[frame.index.isin(steps)]
    return told_apart


def steps_before(steps: Int64s, spans: pd.DataFrame) -> Int64s:
    """The number of the step before each, whether it was recorded or not.

    That is one less, but where a call makes several steps: there numbers jump, and as ``spans``
    show the one call begins when the other has ended. A pause that could hold a step is a gap.
    """
    rows = spans[(spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna()]
    grouped = rows.groupby(rows[c.STEP].astype("int64"), sort=True)
    starts, ends = grouped[c.START_NS].min(), grouped[c.END_NS].max()
    lengths = (ends - starts).to_numpy(np.int64)
    pause = starts.to_numpy(np.int64)[1:] - ends.to_numpy(np.int64)[:-1]
    is_next = pause < np.minimum(lengths[1:], lengths[:-1]) / 2
    numbers = starts.index.to_numpy(dtype=np.int64)
    jumps = np.flatnonzero(is_next & (np.diff(numbers) > 1))
    before = dict(zip(numbers[1:][jumps].tolist(), numbers[:-1][jumps].tolist(), strict=True))
    if not before:
        return steps - 1
    return np.array([before.get(step, step - 1) for step in steps.tolist()], dtype=np.int64)


def follow_one_another(steps: Int64s, spans: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which of ``steps``, ascending, come right after the one before them in it."""
    found = np.zeros(steps.size, dtype=bool)
    found[1:] = steps_before(steps, spans)[1:] == steps[:-1]
    return found


def _strides(steps: Int64s, spans: pd.DataFrame) -> Int64s:
    """How many steps each, of those with a collective, is after the one before it; 0: not known.

    Where gradients are accumulated, collectives come every so many steps, all of them recorded.
    """
    found = np.zeros(steps.size, dtype=np.int64)
    gaps = np.diff(steps)
    if not gaps.size:
        return found
    follows = follow_one_another(steps, spans)[1:]
    values, times = np.unique(gaps, return_counts=True)
    usual = int(values[np.argmax(times)])
    if usual > 1:
        known = spans.loc[(spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna(), c.STEP]
        recorded = np.unique(known.to_numpy(dtype=np.int64))
        follows |= (gaps == usual) & (np.diff(np.searchsorted(recorded, steps)) == usual)
    found[1:] = np.where(follows, gaps, 0)
    return found


def _cut(spans: pd.DataFrame, form: str, ways: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Arrivals of one rank cut into pieces; ``ways``: see ``_exclusive_pieces``."""
    syncs = _last_collectives(spans, form)
    strides = _strides(syncs.index.to_numpy(dtype=np.int64), spans)
    follows = strides > 0
    starts = syncs["last_end"].shift(fill_value=0).to_numpy(np.int64)[follows]
    rows = syncs[follows]
    ready = np.maximum(rows["last_start"].to_numpy(np.int64), starts)
    ends = rows["last_end"].to_numpy(np.int64)
    earlier = _earlier_waits(spans, form)
    waits = overlap(earlier, starts, ready)
    result: pd.DataFrame = pd.DataFrame(
        {
            "arrival_ns": ready - starts - waits,
            "sync_ns": ends - ready + waits,
            "end_ns": ends,
        },
        index=rows.index,
    )
    inside = {piece: np.zeros(len(rows), np.int64) for piece in PIECES}
    for piece, covered in _exclusive_pieces(spans, ways):
        inside[piece] += overlap(subtract(covered, earlier), starts, ready)
    for piece in PIECES:
        result[f"{piece}_ns"] = inside[piece]
    result[f"{HOST}_ns"] = result["arrival_ns"].to_numpy() - sum(inside.values())
    result["bytes"] = rows["bytes"].to_numpy(np.int64)
    result["stride"] = strides[follows]
    return result


def _last_collectives(spans: pd.DataFrame, form: str) -> pd.DataFrame:
    rows = spans[is_collective(spans, form)]
    grouped = rows.groupby(rows[c.STEP].astype("int64"), sort=True)
    ends = grouped[c.END_NS].max()
    syncs: pd.DataFrame = pd.DataFrame(
        {
            "last_start": ends if form == STEP_ENDS else grouped[c.START_NS].max(),
            "last_end": ends,
            "bytes": grouped[c.BYTES].sum().astype("int64"),
        }
    )
    syncs.index.name = "step"
    return syncs


def _earlier_waits(spans: pd.DataFrame, form: str) -> Union:
    """The time in which a step waited in collectives before its last one, and did nothing else.

    Of those that come after others have ended: all of TensorFlow's own, which it runs one by one,
    and of Horovod's what is no gradient, a loss or a metric. Gradients one by one are the work of
    a backward pass, in which the rank goes on computing; and so it may, where its operations tell,
    while TensorFlow's wait.
    """
    rows = spans[is_collective(spans, form)] if form == PROFILER else spans.head(0)
    is_small = (rows[c.BYTES].fillna(_SCALAR_BYTES + 1) <= _SCALAR_BYTES).to_numpy(dtype=bool)
    names = rows[c.NAME].cat
    is_tf = np.array([_TF_COLLECTIVE in str(name) for name in names.categories], dtype=bool)
    may_wait = is_small | (is_tf[names.codes.to_numpy()] if len(rows) else is_small)
    if not may_wait.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = rows.assign(**{_MAY_WAIT: may_wait}).sort_values([c.STEP, c.START_NS], kind="stable")
    step = rows[c.STEP].to_numpy(dtype=np.int64)
    ended = rows[c.END_NS].groupby(step).cummax().groupby(step).shift(fill_value=0)
    is_large = ~rows[_MAY_WAIT].to_numpy(dtype=bool)
    is_followed = pd.Series(is_large)[::-1].groupby(step[::-1]).cummax()[::-1].to_numpy(dtype=bool)
    is_apart = (rows[c.START_NS] >= ended).to_numpy(dtype=bool) & ~is_followed
    burst = np.cumsum(is_apart | np.concatenate(([True], step[1:] != step[:-1])))
    last_start = rows[c.START_NS].groupby(burst).max().to_numpy(np.int64)
    last_end = rows[c.END_NS].groupby(burst).max().to_numpy(np.int64)
    of_step = step[np.unique(burst, return_index=True)[1]]
    is_earlier = np.append(of_step[1:] == of_step[:-1], False)
    in_wait = union(last_start[is_earlier], last_end[is_earlier])
    ops = spans[(spans[c.KIND] == c.EXECUTOR_OP) & spans[c.PHASE].isin(INSIDE_COMPUTE)]
    return subtract(
        in_wait, union(ops[c.START_NS].to_numpy(np.int64), ops[c.END_NS].to_numpy(np.int64))
    )


def _exclusive_pieces(
    spans: pd.DataFrame, ways: Sequence[tuple[str, str]]
) -> list[tuple[str, Union]]:
    """Per way (piece, kind of span) the time it covers and no earlier one of the list does."""
    taken: Union = (np.empty(0, np.int64), np.empty(0, np.int64))
    pieces = []
    for piece, kind in ways:
        rows = spans[(spans[c.KIND] == kind) & (spans[c.PHASE] == piece)]
        covered = union(rows[c.START_NS].to_numpy(np.int64), rows[c.END_NS].to_numpy(np.int64))
        pieces.append((piece, subtract(covered, taken)))
        taken = union(
            np.concatenate((taken[0], covered[0])), np.concatenate((taken[1], covered[1]))
        )
    return pieces
