"""Finds the steps of a training loop that somebody else wrote, from what is seen of it.

What is seen, in the thread that trains:

- a *fetch*: the next batch was taken from an iterator of tf.data;
- a *training call*: the outermost call of a ``tf.function`` in whose tracing a gradient was taken,
  or, where nothing is compiled, the call that takes the gradient;
- an *update*: an optimizer applied gradients, in that call or by a call of its own.

The rules:

1. A step opens when the first training call after its fetches begins. Its span starts where the
   last of these fetches ended; without any, where the call begins.
2. It ends where the next fetch begins, once an update was seen in it. Several fetches and calls
   before one update (gradient accumulation) are thus one step, and so are several updates with one
   batch (generator and discriminator). Where nothing is fetched, or a batch is used for more
   updates than that, it ends where the next training call begins.
3. Fetches since the last step's end are input of the next one. Not so a batch that went elsewhere:
   its iterator gave another one after a call that trains nothing, or came to its end (validation).
   Such a fetch is a span of the host.
4. A call that ends with an exception was no step.
5. Where the loop ends, nobody sees: the last step ends with its last call.

A state machine over times: knows no TensorFlow, no files, no threads.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Sink(Protocol):
        """Where the steps go. Times are CLOCK_MONOTONIC ns."""

        def begin(self, start_ns: int) -> None:
            """A step begins now; its span starts at ``start_ns``."""

        def end(self, end_ns: int) -> None:
            """The open step is over."""

        def cancel(self) -> None:
            """The open step was none."""

        def phase(self, name: str, start_ns: int, end_ns: int) -> None:
            """A phase of the open step; while none is open, of the next one."""

        def host(self, name: str, start_ns: int, end_ns: int) -> None:
            """Something of no step."""


INPUT, COMPUTE, OPTIMIZER = "input", "compute", "optimizer"
FETCH = "fetch"  # one that was no input of a step
_MOST_UPDATES = 16  # with one batch; a loop that makes more uses it again and again
_MAX_PENDING = 256  # an accumulation of more fetches before one call is none


class _Fetch:
    __slots__ = ("end_ns", "is_used", "source", "start_ns")

    def __init__(self, start_ns: int, end_ns: int, source: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.source = source
        self.is_used = False  # by a call that trains nothing


class StepTracker:
    """Told of fetches, calls and updates in order of time; tells the sink of steps and phases."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pending: list[_Fetch] = []
        self._is_open = False
        self._is_updated = False
        self._is_in_call = False  # in one that was known to train when it began
        self._is_first_call = False  # of the open step
        self._has_input = False  # the open step was given a batch
        self._updates = 0  # in the open step
        self._keeps_batch = False  # this loop makes many updates with one batch
        self._last_ns = 0  # end of the last training call or update
        self.fetches_used = 0  # that were input of a step

    def fetch_begins(self, now_ns: int) -> None:
        """The next batch is asked for."""
        if self._is_updated:
            self._end(now_ns)

    def fetch_ends(self, start_ns: int, end_ns: int, source: int) -> None:
        """A batch came. ``source`` tells iterators apart."""
        if self._is_open:
            self._sink.phase(INPUT, start_ns, end_ns)
            self.fetches_used += 1
            self._has_input = True
            return
        self._set_aside([f for f in self._pending if f.is_used and f.source == source])
        self._set_aside(self._pending[: max(0, len(self._pending) + 1 - _MAX_PENDING)])
        self._pending.append(_Fetch(start_ns, end_ns, source))

    def exhausted(self, source: int) -> None:
        """The iterator had no batch any more."""
        self._set_aside([each for each in self._pending if each.source == source])

    def call_begins(self, start_ns: int) -> None:
        """A training call begins, one that is known to be one."""
        self._open(start_ns)
        self._is_in_call = True

    def call_ends(
        self, start_ns: int, end_ns: int, *, updates: bool, phase: str | None = COMPUTE
    ) -> None:
        """A training call is over, whether or not it was known for one when it began."""
        if not self._is_in_call:
            self._open(start_ns)
        self._is_in_call = self._is_first_call = False
        if phase is not None:
            self._sink.phase(phase, start_ns, end_ns)
        if updates:
            self._saw_update()
        self._last_ns = end_ns

    def call_failed(self) -> None:
        """A training call that was known for one ended with an exception."""
        self._is_in_call = False
        if self._is_first_call:
            self._is_open = self._is_updated = self._is_first_call = False
            self._sink.cancel()

    def other_call(self) -> None:
        """A call that trains nothing is over: an evaluation, or something done to the batch."""
        for each in self._pending:
            each.is_used = True

    def updated(self, start_ns: int, end_ns: int) -> None:
        """An optimizer applied gradients in a call of its own."""
        if self._is_open:
            self._sink.phase(OPTIMIZER, start_ns, end_ns)
            self._saw_update()
            self._last_ns = end_ns

    def interrupted(self, now_ns: int) -> None:
        """Something that belongs to no step begins: an evaluation, a checkpoint, Keras's fit."""
        if self._is_updated:
            self._end(now_ns)

    def finish(self) -> None:
        """Nothing comes any more."""
        if self._is_open and self._last_ns:
            self._end(self._last_ns)
        elif self._is_open:
            self._is_first_call = True
            self.call_failed()
        self._set_aside(list(self._pending))

    def _saw_update(self) -> None:
        self._is_updated = True
        self._updates += 1
        if self._updates >= _MOST_UPDATES:
            self._keeps_batch = True

    def _open(self, start_ns: int) -> None:
        if self._is_updated and (self._keeps_batch or not self._has_input):
            self._end(start_ns)
        if self._is_open:
            return
        for each in self._pending:
            self._sink.phase(INPUT, each.start_ns, each.end_ns)
        start_ns = self._pending[-1].end_ns if self._pending else start_ns
        self.fetches_used += len(self._pending)
        self._has_input = bool(self._pending)
        self._updates = 0
        self._pending.clear()
        self._sink.begin(start_ns)
        self._is_open = self._is_first_call = True
        self._last_ns = 0

    def _end(self, end_ns: int) -> None:
        self._is_open = self._is_updated = self._is_first_call = False
        self._sink.end(end_ns)

    def _set_aside(self, fetches: list[_Fetch]) -> None:
        for each in fetches:
            self._pending.remove(each)
            self._sink.host(FETCH, each.start_ns, each.end_ns)
