"""Who is told of the steps of a training. Nobody who follows may raise, or take long."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Follower(Protocol):
        """Told of every step until it answers True: then there is nothing left for it to do."""

        def step_begins(self, number: int) -> bool:
            """In the thread that trains, just before the step."""

        def step_ended(self, number: int) -> bool:
            """In the thread that trains, just after the step."""

        def close(self, number: int) -> None:
            """The training ends, ``number`` being its last step (-1: there was none)."""

else:
    Follower = object  # Protocol is not worth loading
