"""What did the training ask of Horovod, all ranks together?

From what each rank counted (annotate/horovod_calls.py): at trace time inside a tf.function, so that
only "none" and "some" mean anything. A count that any rank does not know is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.trace.model import RankInfo


@dataclass(frozen=True)
class HorovodUse:
    """Largest counts over the ranks that Horovod connects; None where a rank does not know.

    ``gradients``: handed over by Horovod's optimizer or tape. ``others``: allreduces and gathers
    besides, of more than one number. ``broadcasts``: of floating point values. ``wrapped``: its
    optimizers and tapes. ``size``: the smallest that a rank was told.
    """

    size: int
    ranks: tuple[int, ...]
    gradients: int | None
    others: int | None
    broadcasts: int | None
    wrapped: int | None

    @property
    def exchanges_nothing(self) -> bool:
        """Whether it is known that nothing was exchanged that could hold a gradient."""
        return self.gradients == 0 and self.others == 0

    @property
    def exchanges(self) -> bool:
        """Whether something was exchanged that could hold a gradient."""
        return bool(self.gradients or self.others)


NOT_USED = HorovodUse(0, (), None, None, None, None)


def horovod_use(infos: Sequence[RankInfo]) -> HorovodUse:
    """NOT_USED where no rank told that Horovod connects it to another."""
    told = {
        info.rank: info.training.horovod
        for info in infos
        if info.training is not None and info.training.horovod is not None
    }
    told = {rank: one for rank, one in told.items() if (_count(one.get("size")) or 0) > 1}
    if not told:
        return NOT_USED

    def most(*names: str) -> int | None:
        counts = [_count(one.get(name)) for one in told.values() for name in names]
        known = [count for count in counts if count is not None]
        return max(known) if len(known) == len(counts) else None

    return HorovodUse(
        size=min(_count(one.get("size")) or 0 for one in told.values()),
        ranks=tuple(sorted(told)),
        gradients=most("gradients"),
        others=most("allreduces", "gathers"),
        broadcasts=most("broadcasts"),
        wrapped=most("optimizers", "tapes"),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
