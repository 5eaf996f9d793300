"""When no step came for too long: what happened afterwards, and which rank was missing?

The watchdog of each rank notes the last step that had ended, and for how long none had since.
1. Notes of different ranks about the same step or neighbouring ones are one hang: ranks that wait
   for each other are never further apart. They may also be two, when not every rank noted each.
2. It went on when some rank ended a later step; that is not known when no rank's record reaches
   the step of the hang (not marked, or recording had stopped).
3. Missing, from the notes: ranks whose last step is one less than that of the others. When it went
   on, only if the step that was so long shows the same ranks as late (4), else nothing is said.
   When nothing came afterwards, only ranks whose own record ends there too, also without a note.
4. Else, when it went on, from the step that was so long (arrivals.py; one of the next two): ranks
   that took half of the hang or more to reach its last allreduce, if others did not. If none did,
   all were in the allreduce; if all did, none waited for another.

Says "cannot be told" where none of this decides, and always when Horovod does not connect the
ranks. Every length is read on one rank's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from hpcprof.analyses.stragglers import are_connected
from hpcprof.trace.model import Hang, RankInfo

# how it was told who was missing, or that nobody was
RECORDS, ARRIVAL = "records", "arrival"
ALL_ARRIVED, ALL_LATE, UNKNOWN = "all-arrived", "all-late", "unknown"

_NONE_ENDED = -1
_LATE_SHARE = 0.5  # of the hang; the watchdog notes it while it lasts, so that it was longer
NS_PER_S = 1e9


@dataclass(frozen=True)
class HangEpisode:
    """``ranks`` noted it, those ``with_stacks`` with what each thread did.

    ``step``: the last that any of them had ended; None when none had, or nobody knows.
    ``seconds``: the longest noted. ``went_on``: None when steps were not recorded up to there.
    ``behind``: ranks that were missing, () unless ``told_by`` is RECORDS or ARRIVAL.
    """

    ranks: tuple[int, ...]
    with_stacks: tuple[int, ...]
    step: int | None
    seconds: float
    went_on: bool | None
    behind: tuple[int, ...]
    told_by: str


def hang_episodes(
    infos: Sequence[RankInfo],
    last_ended: Mapping[int, int],
    frames: Mapping[int, pd.DataFrame],
) -> tuple[HangEpisode, ...]:
    """All hangs of a job, in order of steps.

    ``last_ended``: rank → its last step that ended, of those that ended any. ``frames``: rank →
    ``arrivals.per_rank``.
    """
    connected = are_connected(infos)
    return tuple(
        _episode(notes, last_ended, frames if connected else {}, connected=connected)
        for notes in _grouped(infos)
    )


def _grouped(infos: Iterable[RankInfo]) -> list[dict[int, Hang]]:
    """Notes that belong together: rank → note."""
    notes = [(_number(hang), info.rank, hang) for info in infos for hang in info.hangs]
    noted = {(step, rank) for step, rank, _ in notes}
    # ranks that noted the step before too come first: for them this is another hang
    notes.sort(key=lambda note: (note[0], (note[0] - 1, note[1]) not in noted, note[1]))
    groups: list[dict[int, Hang]] = []
    for step, rank, hang in notes:
        fitting = [g for g in groups if rank not in g and step <= _first(g) + 1]
        same = [g for g in fitting if _first(g) == step]
        group = next(iter(same or fitting), None)
        if group is None:
            group = {}
            groups.append(group)
        group[rank] = hang
    return groups


def _first(notes: Mapping[int, Hang]) -> int:
    return min(_number(hang) for hang in notes.values())


def _number(hang: Hang) -> int:
    return _NONE_ENDED if hang.step is None else hang.step


def _episode(
    notes: Mapping[int, Hang],
    last_ended: Mapping[int, int],
    frames: Mapping[int, pd.DataFrame],
    *,
    connected: bool,
) -> HangEpisode:
    top = max(_number(hang) for hang in notes.values())
    seconds = max(hang.seconds for hang in notes.values())
    last = max(last_ended.values(), default=_NONE_ENDED - 1)
    went_on = None if last < top or not last_ended else last > top
    known = {rank: _number(hang) for rank, hang in notes.items()}
    if went_on is False:
        # a rank that ended a step after its note was missing in another hang, if at all
        known = {rank: max(last_ended.get(rank, step), step) for rank, step in known.items()}
        known = {**last_ended, **known}
    behind = tuple(sorted(rank for rank, step in known.items() if step == top - 1))
    told_by = RECORDS if behind else UNKNOWN
    if went_on:
        late, how = _late_at_next(frames, top, seconds)
        if not behind:
            behind, told_by = late, how
        elif late != behind:
            behind, told_by = (), UNKNOWN
    if not connected:
        behind, told_by = (), UNKNOWN
    return HangEpisode(
        ranks=tuple(sorted(notes)),
        with_stacks=tuple(sorted(rank for rank, hang in notes.items() if hang.has_stacks)),
        step=None if top == _NONE_ENDED else top,
        seconds=seconds,
        went_on=went_on,
        behind=behind,
        told_by=told_by,
    )


def _late_at_next(
    frames: Mapping[int, pd.DataFrame], after: int, seconds: float
) -> tuple[tuple[int, ...], str]:
    """Ranks that were late at the allreduce that ended the hang, and how that was told.

    A hang after the last allreduce of a step delays that of the step behind it.
    """
    limit = _LATE_SHARE * seconds * NS_PER_S
    for step in (after + 1, after + 2):
        found = {
            rank: frame.loc[step, ["arrival_ns", "sync_ns"]].astype("int64")
            for rank, frame in frames.items()
            if step in frame.index
        }
        if len(found) < max(2, len(frames)):
            return (), UNKNOWN
        if min(row.sum() for row in found.values()) < limit:
            continue
        late = tuple(sorted(r for r, row in found.items() if row["arrival_ns"] >= limit))
        if not late:
            return (), ALL_ARRIVED
        return (late, ARRIVAL) if len(late) < len(found) else ((), ALL_LATE)
    return (), UNKNOWN
