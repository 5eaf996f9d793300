"""Which collectives of the ranks are the same one, and how much of each is waiting?

1. Matched: a collective is known by its step and its place within it. A step counts when every rank
   has the same operations with the same bytes in the same order, else which is which is a guess,
   and the whole step is left out.
2. Transfer = the shortest duration over the ranks (algorithms, section 2): the last rank to arrive
   waits for nobody. Wait = a rank's own duration beyond that. Both ends of every duration are read
   on one clock, so the spans need not be aligned, and ``align`` may use the matches.

What makes it wrong: a profiler's range that begins when a tensor is handed over. Its transfer then
includes the queue in front of it, and ranges of one step overlap: do not add them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.arrivals import is_collective
from hpcprof.trace import columns as c

Int64s = npt.NDArray[np.int64]

RANK = "rank"
MATCHED_COLUMNS = (RANK, c.STEP, c.SEQ, c.BYTES, c.START_NS, c.END_NS)
TRANSFER_NS, WAIT_NS = "transfer_ns", "wait_ns"


@dataclass(frozen=True)
class MatchedCollectives:
    """``rows``: one per rank and collective, int64 MATCHED_COLUMNS, sorted by rank, step, seq.

    Every rank has the same (step, seq) in the same order, so that a column is a matrix
    [rank, collective] in rows of one rank after the other. ``seq`` counts within the step; bytes
    are 0 when unknown. ``dropped``: collectives that cannot be matched, counted once each.
    """

    rows: pd.DataFrame
    dropped: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were matched, ascending; () when nothing was."""
        return tuple(int(rank) for rank in self.rows[RANK].unique())

    def __len__(self) -> int:
        """Number of collectives that all ranks share."""
        return len(self.rows) // max(1, len(self.ranks))


def in_steps(spans: pd.DataFrame, form: str, steps: Int64s) -> pd.DataFrame:
    """Of one rank's spans the allreduces in ``steps``: what ``matched`` needs of them."""
    kept: pd.DataFrame = spans[is_collective(spans, form) & spans[c.STEP].isin(steps)]
    return kept


def matched(spans: Mapping[int, pd.DataFrame], form: str) -> MatchedCollectives:
    """Match the allreduces of all ranks given (rank → spans, each on any clock).

    ``form``: arrivals.PROFILER or MARKED. A rank without any leaves nothing to match.
    """
    tables = [_of_rank(rank, table, form) for rank, table in sorted(spans.items())]
    if not tables:
        return MatchedCollectives(pd.DataFrame({n: [] for n in MATCHED_COLUMNS}, dtype=np.int64), 0)
    joined: pd.DataFrame = pd.concat(tables, ignore_index=True)
    groups = joined.groupby([c.STEP, c.SEQ], sort=True)
    sizes, payload = groups.size(), groups[c.BYTES]
    same = (sizes == len(tables)) & (payload.min() == payload.max())
    whole = same.groupby(level=c.STEP).all()
    steps = whole.index[whole.to_numpy(dtype=bool)]
    dropped = int((~same.index.get_level_values(c.STEP).isin(steps)).sum())
    return MatchedCollectives(joined[joined[c.STEP].isin(steps)].reset_index(drop=True), dropped)


def decomposed(rows: pd.DataFrame) -> pd.DataFrame:
    """``MatchedCollectives.rows`` with transfer_ns (the same on all ranks) and wait_ns, both >= 0.

    Clock-free: wait + transfer is the rank's own duration.
    """
    duration = rows[c.END_NS] - rows[c.START_NS]
    transfer = duration.groupby([rows[c.STEP], rows[c.SEQ]]).transform("min")
    parts: pd.DataFrame = rows.assign(**{TRANSFER_NS: transfer, WAIT_NS: duration - transfer})
    return parts


def _of_rank(rank: int, spans: pd.DataFrame, form: str) -> pd.DataFrame:
    rows = spans[is_collective(spans, form)]
    table: pd.DataFrame = pd.DataFrame(
        {
            RANK: np.full(len(rows), rank, np.int64),
            c.STEP: rows[c.STEP].to_numpy(dtype=np.int64),
            c.SEQ: np.zeros(len(rows), np.int64),
            c.BYTES: rows[c.BYTES].fillna(0).to_numpy(dtype=np.int64),
            c.START_NS: rows[c.START_NS].to_numpy(dtype=np.int64),
            c.END_NS: rows[c.END_NS].to_numpy(dtype=np.int64),
        }
    )
    table = table.sort_values([c.STEP, c.START_NS], kind="stable", ignore_index=True)
    table[c.SEQ] = table.groupby(c.STEP).cumcount().astype("int64")
    return table
