"""Steps and phases that hooks mark, in a script that marks none itself.

Silent once the script marks its own steps (``leave_to_script``), between ``pause`` and ``resume``,
and after a failure of ours (``give_up``). Only the process that the launcher's start-up code found
to be the training marks anything. Knows neither TensorFlow nor when a step begins.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Callable, Iterator

from hpcprof.annotate import session, training_notes
from hpcprof.annotate.notes import leave_note
from hpcprof.annotate.session import Session
from hpcprof.artifacts import rank_env, span_format
from hpcprof.artifacts.training_record import BY_CALLS

# what the call of a training function holds; marked by a script, the call's phase is left out
_PARTS_OF_COMPUTE = frozenset(("compute", "forward", "backward", "allreduce", "optimizer"))

_is_left_to_script = False
_is_paused = False
_script_phases: set[str] = set()
_is_closing_watched = False  # so that what is open then ends
_finish: list[Callable[[], None]] = []  # what ends the step that a loop has open


class _Hushed(threading.local):
    """How many calls this thread makes inside which hooks of loops are silent."""

    depth = 0


_hushed = _Hushed()


def is_on() -> bool:
    """Whether hooks mark steps now."""
    return not (_is_left_to_script or _is_paused)


def is_left_to_script() -> bool:
    """Whether the script marks its steps itself."""
    return _is_left_to_script


def leave_to_script() -> None:
    """The script marks its own steps: from now on hooks mark none."""
    global _is_left_to_script
    if _is_left_to_script:
        return
    _finish_open_step()
    _is_left_to_script = True
    current = session.current() if session.is_opened() else None
    if current is not None:
        current.progress.is_found = False
    training_notes.put(steps_by=BY_CALLS, input_not_separable=None)


def leave_phase_to_script(name: object) -> None:
    """The script marks this phase itself: hooks leave it out, and what would hold it."""
    if type(name) is str and name not in _script_phases:
        _script_phases.add(name)
        if name in _PARTS_OF_COMPUTE:
            _script_phases.add("compute")


def pause() -> None:
    """Mark nothing until ``resume``; for measuring what marking costs."""
    global _is_paused
    _finish_open_step()
    _is_paused = True


def resume() -> None:
    """Mark steps again."""
    global _is_paused
    _is_paused = False


def give_up(error: BaseException) -> None:
    """A hook of ours failed: mark nothing more, and say so; the training goes on."""
    global _is_paused
    if not _is_paused:
        _is_paused = True
        text = f"hooks stopped marking steps: {error!r}"
        training_notes.warn(text)
        leave_note(text)


def safely(look: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Do what a hook does beside the training's own call; a mistake of ours ends the marking."""
    try:
        look(*args, **kwargs)
    except Exception as error:
        give_up(error)


def _finish_open_step() -> None:
    for finish in _finish:
        finish()


def end_with(finish: Callable[[], None]) -> None:
    """Make this call, which must not raise, where an open step has to end at once."""
    _finish.append(finish)


@contextlib.contextmanager
def hush() -> Iterator[None]:
    """Within this the hooks of loops are silent in this thread: what runs is told of as a whole."""
    _hushed.depth += 1
    try:
        yield
    finally:
        _hushed.depth -= 1


def is_hushed() -> bool:
    """Whether this thread is in a call that is told of as a whole."""
    return _hushed.depth > 0


def is_training_process() -> bool:
    """Whether this is the process that the launcher's start-up code found to be the training."""
    return os.environ.get(rank_env.OWNER) == str(os.getpid())


def may_look() -> bool:
    """Whether hooks look at this process now: also where they mark nothing, to describe it."""
    return not _is_paused and (session.is_opened() or is_training_process())


def may_mark() -> bool:
    """Whether hooks mark steps in this process now."""
    return not _is_left_to_script and may_look()


def marking_session() -> Session | None:
    """The session to mark steps in, opened at the first call; None when hooks mark none."""
    global _is_closing_watched
    if _is_left_to_script or _is_paused:
        return None
    if not session.is_opened() and not is_training_process():
        return None  # a forked child, which must not ask: that would be noted
    try:
        current = session.current(marks_steps=True)
    except Exception as error:
        give_up(error)
        return None
    if current is not None:
        current.progress.is_found = True
    if current is not None and not _is_closing_watched:
        _is_closing_watched = True
        current.before_close(_finish_open_step)
    return current


def record_phase(current: Session, name: str, start_ns: int, end_ns: int) -> None:
    """A phase that a hook saw, unless the script marks it; it belongs to the step of now."""
    if name not in _script_phases:
        number = current.step_of_span()
        current.recorder.add(start_ns, end_ns, name, number, span_format.KIND_PHASE)


def record_beside_steps(name: str, start_ns: int, end_ns: int, flags: int) -> None:
    """Something between steps; only where steps are recorded: it makes no process the training."""
    current = session.current() if is_on() and session.is_opened() else None
    if current is not None and name not in _script_phases:
        current.recorder.add(start_ns, end_ns, name, current.step_of_span(), flags)


@contextlib.contextmanager
def range_of(current: Session, text: str) -> Iterator[None]:
    """An NVTX range around what runs, where somebody listens."""
    domain = current.domain
    if domain is None:
        yield
        return
    domain.push(text)
    try:
        yield
    finally:
        domain.pop()


class AutomaticStep:
    """A step that a hook has open. ``start_ns`` is where its span begins, now or earlier."""

    __slots__ = ("_current", "_number", "_start_ns")

    def __init__(self, current: Session, start_ns: int) -> None:
        self._current = current
        self._number = current.next_step
        self._start_ns = start_ns
        current.begin_step(self._number)
        current.push_step(self._number)

    def end(self, end_ns: int, updates: int = 1) -> None:
        """The step is over; ``updates`` is how many were made in it."""
        self._current.pop()
        self._current.end_step(self._start_ns, end_ns, self._number, updates)

    def cancel(self) -> None:
        """It was no step: its call ended with an exception."""
        self._current.pop()
        self._current.cancel_step()
