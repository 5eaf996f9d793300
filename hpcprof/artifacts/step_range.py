"""``20-59``: a range of training steps, as a job spec, the launcher and the training write it."""

from __future__ import annotations

import re
from typing import NamedTuple

_RANGE_RE = re.compile(r"\A([0-9]{1,9})-([0-9]{1,9})\Z")


class StepRange(NamedTuple):
    """Steps ``first`` to ``last``, both of them included, counted from 0."""

    first: int
    last: int

    @classmethod
    def from_text(cls, text: str) -> StepRange:
        """Read ``FIRST-LAST``. Raises ValueError in words that complete "profile.steps: …"."""
        match = _RANGE_RE.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a range of steps; write 20-59 (both included)")
        first, last = int(match.group(1)), int(match.group(2))
        if last < first:
            raise ValueError(f"{text}: the last step comes before the first; write {last}-{first}")
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"
