"""In which form did the ranks record their collectives, and which steps are worth comparing?

1. Form: one that every rank with any collective has; mixing two would accuse somebody. Lateness is
   judged by the profiler's, unless it recorded a window only: where a rank has the marked form in
   more than twice as many steps, the marked one is taken, so that the verdict speaks of the run.
   Transfer is always judged by the finest form that all ranks have, in the window if need be.
2. A step is even when every rank has equally many collectives in it. In any other step which is
   which is a guess.
3. Of long trainings at most MOST_STEPS even steps are taken: one from each of as many equal parts
   of the run, the first and the last step among them. Medians do not need more, and what is held in
   memory stays bounded. Which one of a part is drawn at random, always alike: steps at a fixed
   distance might all be those with a checkpoint.

Takes one rank after the other and keeps a few numbers per step. Does not look at bytes or times;
``collectives`` does, in the steps chosen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses import arrivals
from hpcprof.trace import columns as c

Int64s = npt.NDArray[np.int64]

# a median over 2000 steps is off by a fortieth of the spread of the steps (1.25 / sqrt(n))
MOST_STEPS = 2_000
# of the marked steps of each rank; below it the profiler's collectives are a window of the run
MIN_SHARE_OF_MARKED = 0.5
# collectives times ranks held at once: 48 bytes each, and a few times that while they are joined
MOST_ROWS = 4_000_000
# however many collectives a step has: fewer steps and the medians get worse
FEWEST_STEPS = 100

Counts = Mapping[str, "pd.Series[int]"]  # form → step → collectives, of one rank

_FEWEST, _MOST, _RANKS = _COUNTS = ("fewest", "most", "ranks")


def step_counts(spans: pd.DataFrame) -> Counts:
    """Form → step → number of collectives, of one rank; {} when it has none within steps."""
    counts = {}
    is_read = spans[c.KIND].isin(arrivals.KINDS_READ)
    for form in (arrivals.PROFILER, arrivals.MARKED):
        steps = spans.loc[is_read & arrivals.is_collective(spans, form), c.STEP].to_numpy(
            dtype=np.int64
        )
        if len(steps):
            found, times = np.unique(steps, return_counts=True)
            counts[form] = pd.Series(times, index=found)
    return counts


@dataclass(frozen=True)
class SharedSteps:
    """What all ranks have in common. ``form`` is arrivals.PROFILER, MARKED or NONE.

    ``ranks``: those with any collective, ascending. ``table``: per step the fewest and the most
    collectives of a rank, and the number of ranks that have any; ascending, empty without a form.
    """

    form: str
    ranks: tuple[int, ...] = ()
    table: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=_COUNTS, dtype="int64")
    )

    def chosen(self, within: range | None = None) -> Int64s:
        """Even steps to compare, ascending; of those ``within`` when that is given."""
        counts = self._even(within)[_MOST]
        if not len(counts):
            return np.empty(0, np.int64)
        fitting = int(MOST_ROWS / (len(self.ranks) * float(counts.mean())))
        most = min(MOST_STEPS, max(FEWEST_STEPS, fitting))
        steps: Int64s = counts.index.to_numpy(dtype=np.int64)
        return steps if len(steps) <= most else steps[_spread(len(steps), most)]

    def uneven(self, within: range | None = None) -> int:
        """Collectives in steps that are not even, counted once each."""
        rows = self._within(within)
        return int(rows[_MOST].sum()) - int(self._even(within)[_MOST].sum())

    def _even(self, within: range | None) -> pd.DataFrame:
        rows = self._within(within)
        is_even = (rows[_RANKS] == len(self.ranks)) & (rows[_FEWEST] == rows[_MOST])
        even: pd.DataFrame = rows[is_even]
        return even

    def _within(self, within: range | None) -> pd.DataFrame:
        if within is None:
            return self.table
        rows: pd.DataFrame = self.table[self.table.index.isin(within)]
        return rows


class SharedForms(NamedTuple):
    """The steps by which lateness is judged, and those by which transfer is: often the same."""

    lateness: SharedSteps
    transfer: SharedSteps


def shared_steps(ranks: Iterable[tuple[int, Counts]]) -> SharedSteps:
    """Those by which lateness is judged; clocks follow from them too, as they span the run."""
    return shared_forms(ranks).lateness


def shared_forms(ranks: Iterable[tuple[int, Counts]]) -> SharedForms:
    """Put together the ``step_counts`` of all ranks, given one by one as (rank, counts)."""
    present: list[int] = []
    tables: dict[str, pd.DataFrame] = {}
    having = dict.fromkeys((arrivals.PROFILER, arrivals.MARKED), 0)
    is_window = False
    for rank, counts in ranks:
        if counts:
            present.append(rank)
            is_window = is_window or _is_window(counts)
        for form, found in counts.items():
            having[form] += 1
            one = pd.DataFrame({_FEWEST: found, _MOST: found, _RANKS: 1})
            tables[form] = _joined(tables[form], one) if form in tables else one
    of_all = [
        SharedSteps(form, tuple(sorted(present)), tables[form])
        for form, count in having.items()
        if present and count == len(present)
    ]
    if not of_all:
        return SharedForms(SharedSteps(arrivals.NONE), SharedSteps(arrivals.NONE))
    finest, widest = of_all[0], of_all[-1]
    return SharedForms(widest if is_window else finest, finest)


def _is_window(counts: Counts) -> bool:
    """Whether the profiler saw less than half of the steps that the rank marked."""
    profiler, marked = counts.get(arrivals.PROFILER), counts.get(arrivals.MARKED)
    if profiler is None or marked is None:
        return False
    seen = marked.index.isin(profiler.index).sum()
    return bool(seen < MIN_SHARE_OF_MARKED * len(marked))


def _spread(length: int, count: int) -> Int64s:
    """``count`` of the numbers below ``length``, ascending: one of each part, first and last."""
    edges = np.linspace(0, length, count + 1).astype(np.int64)
    drawn = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    drawn[0], drawn[-1] = 0, length - 1
    return drawn


def _joined(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    groups = pd.concat([one, other]).groupby(level=0, sort=True)
    joined: pd.DataFrame = groups.agg({_FEWEST: "min", _MOST: "max", _RANKS: "sum"})
    return joined
