"""Records some steps with tf.profiler (XPlane files), on the ranks that the launcher chose.

Where the first step is 0 the recording starts before the model is built: only then does it hold
every allocation of memory. TensorFlow has one profiler per process. The training's own comes first:
where it runs already ours does not start, and where it starts ours ends before. Raises nothing.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any, Callable

from hpcprof.annotate import training_notes
from hpcprof.annotate.follower import Follower
from hpcprof.annotate.notes import leave_note
from hpcprof.annotate.window import RecordBusy
from hpcprof.artifacts import node_time, rank_env, tf_profile_format
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.step_range import StepRange

_HOST_LEVEL = 2  # operations and allocations; 3 adds every piece of a thread pool's work
# an event is recorded when it is left; a thread that ended the step may still be in one
_LEAVING_SECONDS = 0.005
_NO_STEP = -1
_START, _STOP = "tf.profiler start", "tf.profiler stop"

_NUMBER, _OWN = tf_profile_format.STEP_NUMBER, tf_profile_format.OWN_STEP

_now = node_time.monotonic_ns


class ProfilerWindow:
    """The steps that tf.profiler records. Told of every step until it is over.

    ``folder``: where the XPlane file goes, one folder per rank. ``traces_device``: whether the GPU
    is recorded too, which only one profiler per process can do.
    """

    def __init__(self, steps: StepRange, folder: str, *, traces_device: bool) -> None:
        self.is_open = False
        self._is_over = False
        self._steps = steps
        self._folder = folder
        self._device_level = 1 if traces_device else 0
        self._first = self._last = _NO_STEP  # of the steps recorded so far
        self._marker: Any = None
        self._sync_numbers = itertools.count()
        self._busy: list[tuple[str, int, int, int]] = []
        self._record: RecordBusy | None = None
        self._restore_start: Callable[[], None] = _nothing

    def tell_busy(self, record: RecordBusy) -> None:
        """From now on ``record`` is told of the times in which the profiler kept us waiting."""
        self._record = record
        for name, start_ns, end_ns, number in self._busy:
            record(name, start_ns, end_ns, number)
        self._busy.clear()

    def step_begins(self, number: int) -> bool:
        """Open when this step is in the window; True when nothing is left to do."""
        if self._is_over:
            return True
        if not self.is_open:
            if number < self._steps.first:
                return False
            if number > self._steps.last:
                self._give_up(f"the first step from {self._steps.first} on was {number}")
                return True
            if not self.open(number):
                return True
        try:
            self._sync()
            # TensorFlow's own tools find the steps by these; ours tells them from Keras's
            self._marker = _experimental().Trace(
                tf_profile_format.STEP, _r=1, **{_NUMBER: number, _OWN: 1}
            )
            self._marker.__enter__()
        except Exception as error:
            self._give_up(_words(error))
            return True
        if self._first < 0:
            self._first = number
        return False

    def step_ended(self, number: int) -> bool:
        """Close when this was the last step; True when nothing is left to do."""
        if self._is_over or not self.is_open:
            return self._is_over
        self._end_marker()
        self._last = number
        if number >= self._steps.last:
            self._close(number)
        return self._is_over

    def close(self, number: int) -> None:
        """The training ends, ``number`` being its last step."""
        if self.is_open:
            self._end_marker()
            self._close(number)
        elif not self._is_over:
            ended = "before its first step" if number < 0 else f"at {number}"
            self._give_up(f"the training ended {ended}")

    def open(self, number: int) -> bool:
        """Start the profiler now, before step ``number``; False, with a note, when it cannot be."""
        start = _now()
        try:
            tf_profiler = _experimental()
            options = tf_profiler.ProfilerOptions(
                host_tracer_level=_HOST_LEVEL,
                python_tracer_level=0,
                device_tracer_level=self._device_level,
            )
            tf_profiler.start(self._folder, options)
            self.is_open = True
            self._restore_start = _before_other_starts(self._give_way)
            self._sync()
        except (
            Exception
        ) as error:  # AlreadyExists, a full disk, or a TensorFlow that we do not know
            self._give_up(_words(error))
        self._tell(_START, start, number)
        return self.is_open

    def _give_way(self) -> None:
        if self.is_open:
            self._close(self._last)
            self._note(f"{self._recorded()} only: the training started a profiler of its own")

    def _close(self, number: int) -> None:
        self.is_open = False
        self._is_over = True
        self._restore_start()
        start = _now()
        try:
            self._sync()
            time.sleep(_LEAVING_SECONDS)
            _experimental().stop()
        except Exception as error:
            self._note(f"nothing was written: {_words(error)}")
        else:
            training_notes.put(tf_steps=self._recorded())
        self._tell(_STOP, start, number)

    def _recorded(self) -> str:
        return f"{self._first}-{self._last}" if self._last >= 0 else "no step"

    def _end_marker(self) -> None:
        marker, self._marker = self._marker, None
        try:
            if marker is not None:
                marker.__exit__(None, None, None)
            self._sync()
        except Exception as error:
            self._note(_words(error))

    def _sync(self) -> None:
        """Two events that bracket a moment on CLOCK_MONOTONIC, as beacons do (span_format)."""
        trace = _experimental().Trace
        names = tf_profile_format
        number = next(self._sync_numbers)
        before, wall = _now(), node_time.realtime_ns()
        first = {names.SYNC_NUMBER: number, names.SYNC_MONOTONIC: before, names.SYNC_WALL: wall}
        with trace(names.SYNC, **first):
            pass
        second = {names.SYNC_NUMBER: number, names.SYNC_MONOTONIC: _now()}
        with trace(names.SYNC, **second):
            pass

    def _tell(self, name: str, start_ns: int, number: int) -> None:
        busy = (name, start_ns, _now(), number)
        if self._record is None:
            self._busy.append(busy)
        else:
            self._record(*busy)

    def _give_up(self, why: str) -> None:
        if self.is_open:
            self._close(self._last)
        self._is_over = True
        self._note(f"no step of {self._steps} was recorded: {why}")

    def _note(self, text: str) -> None:
        leave_note(f"tf.profiler: {text}")
        training_notes.put(tf_steps=text)


_early: ProfilerWindow | None = None


def start_early() -> None:
    """At the end of TensorFlow's import: start now where every allocation is to be seen."""
    global _early
    window = _asked_for()
    if _early is None and window is not None and window[0].first == 0:
        _early = _made(*window)
        _early.open(0)


def wanted(record: RecordBusy) -> Follower | None:
    """The window that the launcher asked for on this rank; None when it asked for none."""
    window = _asked_for()
    if window is None:
        return None
    made = _early if _early is not None else _made(*window)
    made.tell_busy(record)
    return made


def _asked_for() -> tuple[StepRange, str] | None:
    text, folder = os.environ.get(rank_env.TF_STEPS), os.environ.get(rank_env.RANK_FOLDER)
    rank = os.environ.get(rank_env.RANK, "")
    if not text or not folder or not rank.isdigit():
        return None
    try:
        steps = StepRange.from_text(text)
    except ValueError as error:
        leave_note(f"tf.profiler: no steps are recorded: {rank_env.TF_STEPS}: {error}")
        return None
    run_dir = os.path.dirname(os.path.dirname(os.path.abspath(folder)))
    return steps, str(ArtifactPaths(run_dir).tf_profile(int(rank)))


def _made(steps: StepRange, folder: str) -> ProfilerWindow:
    return ProfilerWindow(steps, folder, traces_device=os.environ.get(rank_env.TF_DEVICE) == "1")


def _experimental() -> Any:
    """``tf.profiler.experimental``. Raises KeyError where the training has no TensorFlow."""
    return sys.modules["tensorflow"].profiler.experimental


def _before_other_starts(give_way: Callable[[], None]) -> Callable[[], None]:
    """Have ``give_way`` called before anybody starts tf.profiler; the answer undoes it.

    Else the training's own start would fail with AlreadyExistsError, because of us.
    """
    original = _experimental().start

    def start(*args: Any, **kwargs: Any) -> Any:
        give_way()
        return original(*args, **kwargs)

    # TensorFlow exports it under several names (tf, tf.compat.v2, the module that defines it)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("tensorflow")
        and getattr(module, "__dict__", {}).get("start") is original
    ]
    for module in holders:
        vars(module)["start"] = start

    def restore() -> None:
        for module in holders:
            if vars(module).get("start") is start:
                vars(module)["start"] = original

    return restore


def _nothing() -> None:
    pass


def _words(error: Exception) -> str:
    """The error in one line."""
    if "tensorflow" not in sys.modules:
        return "the training does not use TensorFlow"
    if type(error).__name__ == "AlreadyExistsError":
        return "another profiler of the training was running"
    return f"{type(error).__name__}: {error}".splitlines()[0]
