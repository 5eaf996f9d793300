"""Switches the profiler on for some steps: the same steps on every rank.

Knows when; how is one of two modes: ``cuda``, by a call that the profiler waits for, and ``host``,
by the launcher, which starts or stops the collection at our message. In both modes the launcher is
told when the window opened and closed, or why it never will.
"""

from __future__ import annotations

from typing import Callable

from hpcprof.annotate.notes import leave_message, leave_note
from hpcprof.artifacts import node_time, rank_state
from hpcprof.artifacts.step_range import StepRange
from hpcprof.artifacts.window import HOST

# (name, start, end, step): CLOCK_MONOTONIC ns; the time in which the profiler kept us waiting
RecordBusy = Callable[[str, int, int, int], None]


class CaptureWindow:
    """The steps to record. Told of every step until it is over. Never raises.

    ``place_beacon``: a beacon outside the recording ties nothing to the node's clock, so beacons
    are placed while the window is open.
    """

    def __init__(
        self, steps: StepRange, mode: str, place_beacon: Callable[[], None], record: RecordBusy
    ) -> None:
        self.is_open = False
        self._steps = steps
        self._mode = mode
        self._place_beacon = place_beacon
        self._record = record

    def step_begins(self, number: int) -> bool:
        """Open when this step is in the window; True when nothing is left to do."""
        if self.is_open or number < self._steps.first:
            return False
        if number > self._steps.last:
            _tell_failed(
                f"no step of {self._steps} was recorded by the profiler: "
                f"the first step from {self._steps.first} on was {number}"
            )
            return True
        self.is_open = self._switch(rank_state.OPEN_WINDOW, number)
        if self.is_open:
            self._place_beacon()
        return not self.is_open

    def step_ended(self, number: int) -> bool:
        """Close when this was the last step; True when nothing is left to do."""
        if not self.is_open:
            return False
        # in host mode the collection starts at some time after the message: a beacon every step
        self._place_beacon()
        if number < self._steps.last:
            return False
        self._switch(rank_state.CLOSE_WINDOW, number)
        self.is_open = False
        return True

    def close(self, number: int) -> None:
        """The training ends, ``number`` being its last step."""
        if self.is_open:
            self._place_beacon()
            self._switch(rank_state.CLOSE_WINDOW, number)
            self.is_open = False
        elif number < self._steps.first:
            leave_note(
                f"no step of {self._steps} was recorded by the profiler: "
                f"the training ended {'before its first step' if number < 0 else f'at {number}'}"
            )

    def _switch(self, message: str, number: int) -> bool:
        begins = message == rank_state.OPEN_WINDOW
        now = node_time.monotonic_ns
        start = now()
        if self._mode == HOST:
            return leave_message(message, str(start))
        # imported late: ctypes is for those with a GPU
        from hpcprof.annotate import cuda_profiler

        problem = cuda_profiler.switch(cuda_profiler.START if begins else cuda_profiler.STOP)
        self._record(f"profiler {'start' if begins else 'stop'}", start, now(), number)
        if problem is None:
            leave_message(message, str(start))
        elif begins:
            _tell_failed(f"the profiler could not be started at step {number}: {problem}")
        else:
            leave_note(f"the profiler could not be stopped at step {number}: {problem}")
        return problem is None


def _tell_failed(why: str) -> None:
    leave_note(why)
    leave_message(rank_state.WINDOW_FAILED, why)
