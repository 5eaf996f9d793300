"""What fills the memory of a device at its peak: weights, gradients, feature maps and so on?

1. The moment: of the steps that were watched, the fullest; the first is left out where there are
   others (it builds variables and chooses algorithms, and may have been watched in part). In it the
   moment at which the allocator had given away most.
2. Blocks that live then are divided, lifetime first and name second:
   a. those that were there before the step are *weights* or *optimizer* state where hooks saw a
      variable of their size (each variable takes one block), else *other*: batches that wait,
      metrics, constants. What tf.data made is other, too. A block that the step made and that
      outlives it takes the place of a variable's old value when that is gone;
   b. *workspace* is what its operation lets go of before it ends, and what the optimizer needs in
      passing;
   c. what a collective made is *communication*; what the backward pass made is a *gradient* of a
      weight where it has a weight's size and the optimizer or a collective lets go of it, else an
      *activation gradient*; what the forward pass made is a *feature map*;
   d. the rest is *unclassified*.
3. Blocks that nobody saw come, because the recording began later, are what the allocator says it
   has given away and no block accounts for: weights and optimizer state as far as variables have
   no block yet, the rest *other*.
4. Chunks are larger than what was asked for: the difference is *padding*.

All classes together are the allocator's own number, to the byte. Outside of it are CUDA's context,
the buffers of cuDNN and NCCL, and what other processes have. Wrong can be: a batch or a constant
that has a variable's size by chance. What XLA compiled takes its memory as one block without a name
(unclassified).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hpcprof.trace import columns as c
from hpcprof.trace.memory import MemoryRecord
from hpcprof.trace.model import Training

WEIGHTS, OPTIMIZER_STATE, GRADIENTS = "weights", "optimizer", "gradients"
FEATURE_MAPS, ACTIVATION_GRADIENTS = "feature maps", "activation gradients"
WORKSPACE, COMMUNICATION, OTHER = "workspace", "communication", "other"
PADDING, UNCLASSIFIED = "padding", "unclassified"
CLASSES = (
    *(WEIGHTS, OPTIMIZER_STATE, GRADIENTS, FEATURE_MAPS, ACTIVATION_GRADIENTS),
    *(WORKSPACE, COMMUNICATION, OTHER, PADDING, UNCLASSIFIED),
)

OK, INSUFFICIENT, NOT_COLLECTED = "ok", "insufficient", "not_collected"
MOST_TENSORS = 20
_CHUNK_BYTES = 256  # the allocator gives away multiples of it
_DEFAULT_FUSION_BYTES = 128 * 2**20  # of Horovod 0.28; its buffer is a block that nobody names
_ROLES = {"weight": WEIGHTS, "optimizer": OPTIMIZER_STATE}  # artifacts.training_record


class Tensor(NamedTuple):
    """A block that lived at the peak.

    ``op``: the operation it was made for; "" for variables, and where there was none.
    """

    kind: str
    op: str
    nbytes: int


@dataclass(frozen=True)
class MemorySplit:
    """One allocator at its peak. Without ``OK`` as status there are no numbers, and a ``reason``.

    ``total_bytes``: what the allocator had given away at ``at_ns`` in step ``step``; the values of
    ``bytes_by_class`` add up to it. ``peak_bytes``: the most it ever had, in any step.
    ``older_bytes``: of blocks that were there before anybody watched. ``largest`` come first.
    """

    allocator: str
    status: str
    reason: str = ""
    step: int | None = None
    at_ns: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    fragmentation_frac: float = float("nan")
    older_bytes: int = 0
    bytes_by_class: dict[str, int] = field(default_factory=dict)
    largest: tuple[Tensor, ...] = ()

    @property
    def unclassified_frac(self) -> float:
        """Share of the peak of which nobody knows what it is."""
        return self.bytes_by_class.get(UNCLASSIFIED, 0) / max(self.total_bytes, 1)


def memory_splits(
    record: MemoryRecord, spans: pd.DataFrame, training: Training | None
) -> tuple[MemorySplit, ...]:
    """One split per allocator of a GPU; of all allocators where no GPU was watched.

    ``spans`` hold the steps, on the clock of the record. () when no allocator was watched.
    """
    names = sorted(set(record.levels["allocator"]))
    devices = [name for name in names if name.lower().startswith("gpu_") and "host" not in name]
    return tuple(_split(name, record, spans, training) for name in devices or names)


def _split(
    name: str, record: MemoryRecord, spans: pd.DataFrame, training: Training | None
) -> MemorySplit:
    levels = record.levels[record.levels["allocator"] == name]
    blocks = record.blocks[record.blocks["allocator"] == name]
    variables = _Variables(training)
    if not variables.is_known:
        reason = "no hook saw the variables of the training, so their memory cannot be told apart"
        return MemorySplit(name, INSUFFICIENT, reason)
    steps = _watched_steps(spans, levels)
    if not len(steps):
        reason = "no step was watched"
        return MemorySplit(name, INSUFFICIENT, reason)
    step, peak = _fullest(steps, levels)
    moment = int(peak["time_ns"])
    live = blocks[(blocks["start_ns"] <= moment) & (blocks["end_ns"] > moment)]
    unseen = int(peak["allocated_bytes"]) - int(live["bytes"].sum())
    if unseen < 0:
        reason = "the recording lost returns of blocks: more of them live than there is memory"
        return MemorySplit(name, INSUFFICIENT, reason)
    found = _kinds(blocks, moment, step, _Divided(variables, _fusion_bytes(training)))
    kinds = [found[index] for index in live.index]
    by_class = _by_class(live, kinds)
    for kind, nbytes in _of_unseen(unseen, variables).items():
        by_class[kind] += nbytes
    older = unseen + int(live.loc[live["is_older"].astype(bool), "bytes"].sum())
    return MemorySplit(
        allocator=name,
        status=OK,
        step=step.number,
        at_ns=moment,
        total_bytes=int(peak["allocated_bytes"]),
        peak_bytes=int(levels["peak_bytes"].max()),
        limit_bytes=int(levels["limit_bytes"].max()),
        fragmentation_frac=float(peak["fragmentation_frac"]),
        older_bytes=older,
        bytes_by_class={kind: by_class[kind] for kind in CLASSES},
        largest=_largest(live, kinds),
    )


class _Step(NamedTuple):
    number: int
    start_ns: int
    end_ns: int


class _Variables:
    """Variables of which no block was found yet, by class and size."""

    def __init__(self, training: Training | None) -> None:
        seen = () if training is None else training.variables
        self.is_known = any(role == "weight" for _, _, role, _ in seen)
        self.trainable = frozenset(nbytes for _, nbytes, role, trains in seen if trains)
        self._left = {kind: Counter[int]() for kind in _ROLES.values()}
        for _, nbytes, role, _ in seen:
            if role in _ROLES:
                self._left[_ROLES[role]][nbytes] += 1

    def take(self, nbytes: int, first: str) -> str | None:
        """The class of a variable of this size, which has its block now; None: none is left."""
        for kind in sorted(self._left, key=lambda kind: kind != first):
            if self._left[kind][nbytes] > 0:
                self._left[kind][nbytes] -= 1
                return kind
        return None

    def left_bytes(self, kind: str) -> int:
        """Bytes of the variables of a class without a block."""
        return sum(size * count for size, count in self._left[kind].items())

    def padding_bytes(self) -> int:
        """What their chunks have more, at least."""
        return sum(
            (-size % _CHUNK_BYTES) * count
            for sizes in self._left.values()
            for size, count in sizes.items()
        )


class _Divided(NamedTuple):
    """What blocks are matched with. ``fusion_bytes``: size of Horovod's buffer, 0 for none."""

    variables: _Variables
    fusion_bytes: int


def _watched_steps(spans: pd.DataFrame, levels: pd.DataFrame) -> list[_Step]:
    steps = spans[(spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna()]
    first, last = levels["time_ns"].min(), levels["time_ns"].max()
    inside = steps[(steps[c.END_NS] > first) & (steps[c.START_NS] < last)]
    rows = zip(inside[c.STEP], inside[c.START_NS], inside[c.END_NS], strict=True)
    found = [_Step(int(number), int(start), int(end)) for number, start, end in rows]
    return found[1:] if len(found) > 1 else found


def _fullest(steps: list[_Step], levels: pd.DataFrame) -> tuple[_Step, pd.Series[Any]]:
    times = levels["time_ns"].to_numpy()
    allocated = levels["allocated_bytes"].to_numpy()
    best: tuple[int, _Step, int] | None = None
    for step in steps:
        inside = np.flatnonzero((times >= step.start_ns) & (times <= step.end_ns))
        if len(inside):
            row = int(inside[np.argmax(allocated[inside])])
            if best is None or allocated[row] > best[0]:
                best = (int(allocated[row]), step, row)
    if best is None:  # nothing changed in any step: as full as before the first
        row = max(int(np.searchsorted(times, steps[0].start_ns, side="right")) - 1, 0)
        best = (0, steps[0], row)
    return best[1], levels.iloc[best[2]]


def _kinds(
    blocks: pd.DataFrame, moment: int, step: _Step, divided: _Divided
) -> dict[Hashable, str]:
    """The class of each block that lives at the moment, by its index.

    Those that were there before the step come first, so that they are the values of variables: a
    new value is a gradient, or in the optimizer's hands, until the old one is gone.
    """
    was_there = blocks["start_ns"] < step.start_ns
    outlives = ~blocks["is_freed"].astype(bool) | (blocks["end_ns"] > step.end_ns)
    sizes = blocks["requested_bytes"]
    gone = Counter(sizes[was_there & blocks["end_ns"].between(step.start_ns, moment)].tolist())
    to_come = Counter(sizes[~was_there & outlives & (blocks["start_ns"] <= step.end_ns)].tolist())
    live = blocks[(blocks["start_ns"] <= moment) & (blocks["end_ns"] > moment)]
    kinds: dict[Hashable, str] = {}
    for row in live[was_there[live.index]].itertuples():
        is_replaced = to_come[int(row.requested_bytes)] > 0
        if not outlives[row.Index] and is_replaced:
            to_come[int(row.requested_bytes)] -= 1
        kinds[row.Index] = _old(
            row, divided, may_be_variable=bool(outlives[row.Index]) or is_replaced
        )
    for row in live[~was_there[live.index]].itertuples():
        nbytes = int(row.requested_bytes)
        kind = None
        if outlives[row.Index] and gone[nbytes] > 0:
            gone[nbytes] -= 1
            kind = divided.variables.take(nbytes, _first(row))
        kinds[row.Index] = kind or _new(row, divided.variables, outlives=bool(outlives[row.Index]))
    return kinds


def _first(row: Any) -> str:
    """Of which class a variable is sought first."""
    return OPTIMIZER_STATE if row.phase == c.OPTIMIZER else WEIGHTS


def _old(row: Any, divided: _Divided, *, may_be_variable: bool) -> str:
    """The class of what was there before the step."""
    if row.is_background:
        return OTHER
    if may_be_variable:
        kind = divided.variables.take(int(row.requested_bytes), _first(row))
        if kind is not None:
            return kind
    return COMMUNICATION if _is_fusion_buffer(row, divided.fusion_bytes) else OTHER


def _new(row: Any, variables: _Variables, *, outlives: bool) -> str:
    """The class of what the step made."""
    if row.is_background:
        return OTHER
    if row.op_end_ns and row.end_ns <= row.op_end_ns and not outlives:
        return WORKSPACE
    if row.phase == c.BACKWARD:
        is_used = outlives or row.freed_in in ("", c.OPTIMIZER, c.ALLREDUCE)
        is_gradient = is_used and int(row.requested_bytes) in variables.trainable
        return GRADIENTS if is_gradient else ACTIVATION_GRADIENTS
    return {
        c.ALLREDUCE: COMMUNICATION,
        c.FORWARD: FEATURE_MAPS,
        c.OPTIMIZER: WORKSPACE,
        c.INPUT: OTHER,
    }.get(row.phase, UNCLASSIFIED)


def _is_fusion_buffer(row: Any, size: int) -> bool:
    return not row.op and 0 < size <= int(row.requested_bytes) <= size + 2**20


def _fusion_bytes(training: Training | None) -> int:
    """Size of Horovod's buffer for several tensors at once; 0 without Horovod."""
    if training is None or training.horovod is None:
        return 0
    settings = training.horovod.get("settings") or {}
    text = str(settings.get("HOROVOD_FUSION_THRESHOLD", ""))
    return int(text) if text.isdigit() else _DEFAULT_FUSION_BYTES


def _by_class(live: pd.DataFrame, kinds: list[str]) -> Counter[str]:
    by_class: Counter[str] = Counter()
    for kind, nbytes, chunk in zip(kinds, live["requested_bytes"], live["bytes"], strict=True):
        by_class[kind] += min(int(nbytes), int(chunk))
        by_class[PADDING] += max(int(chunk) - int(nbytes), 0)
    return by_class


def _of_unseen(unseen: int, variables: _Variables) -> dict[str, int]:
    """How the bytes of blocks that nobody saw come are divided."""
    known = {kind: variables.left_bytes(kind) for kind in _ROLES.values()}
    padding = variables.padding_bytes()
    rest = unseen - sum(known.values()) - padding
    if rest < 0:
        return {UNCLASSIFIED: unseen}
    return {**known, PADDING: padding, OTHER: rest}


def _largest(live: pd.DataFrame, kinds: list[str]) -> tuple[Tensor, ...]:
    rows = zip(kinds, live["op"], live["requested_bytes"], strict=True)
    # of variables of one size nobody knows which block is which
    unnamed = frozenset(_ROLES.values())
    tensors = [
        Tensor(kind, "" if kind in unnamed else str(op), int(nbytes)) for kind, op, nbytes in rows
    ]
    return tuple(sorted(tensors, key=lambda tensor: -tensor.nbytes)[:MOST_TENSORS])
