"""Do the ranks train one model?

Each rank noted sums of a few of its variables after some steps (annotate/guards_digests.py: digest
of the values, their norm, four sums that are linear in them).
1. The variables and steps that every rank noted are compared.
2. Values are alike when their digests are equal, or their sums differ by no more than rounding
   explains (a mean over ranks may be rounded in another order on other hardware).
3. Between two such steps, updates are compared like values: ranks that started apart and average
   their gradients update alike.

Assumes that ranks are meant to train one model. Ranks that read the same data and start alike stay
alike without averaging anything; that cannot be seen here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcprof.trace.model import RankInfo

ALIKE = "alike"
SHIFTED = "shifted"  # the values differ, what is added to them does not
APART = "apart"  # so do the updates
DIFFERENT = "different"  # the values differ, at the only step that all ranks noted
UNKNOWN = "unknown"

_SUMS = 4
_ROUNDING = 64 * 2.0**-23  # of float32, relative to the norm; over some steps
_SAME_UPDATE = 0.01  # the largest difference of updates, as a share of the larger one


class WeightSum(NamedTuple):
    """What a rank noted of a variable: the digest of its values, their norm, weighted sums."""

    digest: str
    norm: float
    sums: tuple[float, ...]

    @classmethod
    def from_text(cls, text: str) -> WeightSum:
        """Read "digest norm sum sum sum sum". Raises ValueError."""
        digest, *numbers = text.split()
        norm, *sums = (float(number) for number in numbers)
        if len(sums) != _SUMS or not math.isfinite(norm):
            raise ValueError(text)
        return cls(digest, norm, tuple(sums))


@dataclass(frozen=True)
class WeightAgreement:
    """``state``: one of the words above, of the variable that differs most.

    ``ranks`` were compared; ``variable`` is the one that decided, ``steps`` those at which it was.
    ``first_differs``: whether it differed between ranks at the first of them. ``changed``: whether
    it changed between two steps on any rank, so that this is a training.
    """

    state: str
    ranks: tuple[int, ...] = ()
    variable: str = ""
    steps: tuple[int, ...] = ()
    first_differs: bool = False
    changed: bool = False


def weight_agreement(infos: Sequence[RankInfo]) -> WeightAgreement:
    """Compare the ranks that noted anything; UNKNOWN with fewer than two, or nothing in common."""
    noted = {info.rank: found for info in infos if (found := _noted(info))}
    if len(noted) < 2:
        return WeightAgreement(UNKNOWN)
    shared = sorted(set.intersection(*(set(found) for found in noted.values())))
    ranks = tuple(sorted(noted))
    compared = []
    for variable in sorted({name for name, _ in shared}):
        steps = tuple(step for name, step in shared if name == variable)
        rows = [[noted[rank][variable, step] for step in steps] for rank in ranks]
        compared.append(_compared(rows, ranks, variable, steps))
    order = (APART, DIFFERENT, SHIFTED, ALIKE)
    compared.sort(key=lambda each: (order.index(each.state), not each.changed))
    return compared[0] if compared else WeightAgreement(UNKNOWN)


def _noted(info: RankInfo) -> dict[tuple[str, int], WeightSum]:
    found: dict[tuple[str, int], WeightSum] = {}
    for step, variable, value in info.training.checksums if info.training else ():
        try:
            found[variable, step] = WeightSum.from_text(value)
        except ValueError:  # of another version; or the weights are not finite any more
            continue
    return found


def _compared(
    rows: list[list[WeightSum]], ranks: tuple[int, ...], variable: str, steps: tuple[int, ...]
) -> WeightAgreement:
    """One variable; ``rows``: per rank what it noted at each of the steps."""
    first, last = [row[0] for row in rows], [row[-1] for row in rows]
    state = ALIKE
    if not _are_alike(last):
        state = DIFFERENT if len(steps) < 2 else SHIFTED
        if state == SHIFTED and not _update_alike(rows):
            state = APART
    return WeightAgreement(
        state=state,
        ranks=ranks,
        variable=variable,
        steps=steps,
        first_differs=not _are_alike(first),
        changed=any(row[0].digest != row[-1].digest for row in rows),
    )


def _are_alike(values: list[WeightSum]) -> bool:
    if len({value.digest for value in values}) == 1:
        return True
    rounding = _ROUNDING * max(value.norm for value in values)
    return _spread([value.sums for value in values]) <= rounding


def _update_alike(rows: list[list[WeightSum]]) -> bool:
    """Whether what was added between the first and the last step is the same on all ranks."""
    updates = [tuple(b - a for a, b in zip(row[0].sums, row[-1].sums, strict=True)) for row in rows]
    size = max(abs(each) for update in updates for each in update)
    rounding = _ROUNDING * max(row[-1].norm for row in rows)
    return _spread(updates) <= max(_SAME_UPDATE * size, rounding)


def _spread(sums: Sequence[tuple[float, ...]]) -> float:
    """The largest difference between ranks in any of the sums."""
    columns: Iterable[tuple[float, ...]] = zip(*sums, strict=True)
    return max(max(column) - min(column) for column in columns)
