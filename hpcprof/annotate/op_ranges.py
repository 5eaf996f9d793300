"""Switches TensorFlow's own range per operation on for some steps.

A few µs per operation on a CPU, so for a window of steps only. Knows when; how is in op_switch.
What came of it goes into training.json: steps that were never named are not steps without work.
"""

from __future__ import annotations

import os

from hpcprof.annotate import training_notes
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.op_switch import Switch, SwitchMissingError, find_switch
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.step_range import StepRange


def wanted() -> Follower | None:
    """None when nobody asked for it, or nobody listens. Raises nothing."""
    text = os.environ.get(rank_env.OP_STEPS)
    if not text:
        return None
    if os.environ.get(rank_env.NVTX) != "1" and not os.environ.get("NVTX_INJECTION64_PATH"):
        _note("nobody listens to NVTX on this rank (no nsys, no recorder)")
        return None
    try:
        return OpRanges(StepRange.from_text(text))
    except ValueError as error:
        _note(f"{rank_env.OP_STEPS}: {error}")
        return None


class OpRanges:
    """The steps whose operations are named. Told of every step until it is over. Never raises.

    Stays on between the steps of the window: what is fetched there belongs to the next one.
    """

    def __init__(self, steps: StepRange) -> None:
        self._steps = steps
        self._switch: Switch | None = None  # as long as it is on
        self._began = -1
        self._ended = -1

    def step_begins(self, number: int) -> bool:
        """Switch on when this step is in the window; True when nothing is left to do."""
        if self._switch is not None and number > self._steps.last:
            self._end(self._ended)  # the last step of the window never came
            return True
        if self._switch is not None:
            self._switch(1)  # again: a profile of the training's own that ends switches it off
            return False
        if number < self._steps.first:
            return False
        if number > self._steps.last:
            first = self._steps.first
            _note(f"no step of {self._steps}: the first step from {first} on was {number}")
            return True
        try:
            switch = find_switch()
            switch(1)
        except SwitchMissingError as error:
            _note(str(error))
            return True
        except Exception as error:  # private parts of TensorFlow: whatever happens, it trains
            _note(f"the switch in TensorFlow failed: {error!r}")
            return True
        self._switch = switch
        self._began = number
        _note_steps(self._began, self._steps.last)  # a rank that is killed now has said it
        return False

    def step_ended(self, number: int) -> bool:
        """Switch off when this was the last step; True when nothing is left to do."""
        if self._switch is None:
            return False
        self._ended = number
        if number < self._steps.last:
            return False
        self._end(number)
        return True

    def close(self, number: int) -> None:
        """The training ends, ``number`` being its last step."""
        if self._switch is not None:
            self._end(number)
        elif number < self._steps.first:
            when = "before its first step" if number < 0 else f"at step {number}"
            _note(f"no step of {self._steps}: the training ended {when}")

    def _end(self, number: int) -> None:
        switch, self._switch = self._switch, None
        if switch is not None:
            switch(0)
        if number >= self._began:
            _note_steps(self._began, number)
        else:
            _note(f"the training ended in step {self._began}, before its operations had ended")


def _note(why: str) -> None:
    training_notes.put(op_steps=f"not available: {why}")


def _note_steps(first: int, last: int) -> None:
    training_notes.put(op_steps=str(StepRange(first, last)))
