"""Steps are found from what is seen of a loop: fetches, training calls, updates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcprof.annotate.step_tracker import StepTracker

pytestmark = pytest.mark.unit

TRAIN, VALIDATION = 1, 2  # iterators


class Told:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, start_ns: int) -> None:
        self.lines.append(f"begin {start_ns}")

    def end(self, end_ns: int) -> None:
        self.lines.append(f"end {end_ns}")

    def cancel(self) -> None:
        self.lines.append("cancel")

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        self.lines.append(f"{name} {start_ns}-{end_ns}")

    def host(self, name: str, start_ns: int, end_ns: int) -> None:
        self.lines.append(f"host {name} {start_ns}-{end_ns}")


class Loop:
    """A loop whose events take 10 ns each, 10 ns apart."""

    def __init__(self) -> None:
        self.told = Told()
        self.tracker = StepTracker(self.told)
        self.now = 0

    def _span(self) -> tuple[int, int]:
        self.now += 20
        return self.now - 10, self.now

    def fetch(self, source: int = TRAIN) -> None:
        start, end = self._span()
        self.tracker.fetch_begins(start)
        self.tracker.fetch_ends(start, end, source)

    def train(self, *, updates: bool = True, known: bool = True) -> None:
        start, end = self._span()
        if known:
            self.tracker.call_begins(start)
        self.tracker.call_ends(start, end, updates=updates)

    def fail(self) -> None:
        start, _ = self._span()
        self.tracker.call_begins(start)
        self.tracker.call_failed()

    def other(self) -> None:
        self._span()
        self.tracker.other_call()

    def apply(self) -> None:
        self.tracker.updated(*self._span())

    def exhaust(self, source: int = TRAIN) -> None:
        start, _ = self._span()
        self.tracker.fetch_begins(start)
        self.tracker.exhausted(source)

    def interrupt(self) -> None:
        start, _ = self._span()
        self.tracker.interrupted(start)

    def finish(self) -> None:
        self.tracker.finish()


def lines(events: Callable[[Loop], None]) -> list[str]:
    loop = Loop()
    events(loop)
    return loop.told.lines


def test_a_step_begins_where_its_fetch_ended_and_ends_at_the_next_fetch() -> None:
    def events(loop: Loop) -> None:
        for _ in range(2):
            loop.fetch()
            loop.train()
        loop.finish()

    assert lines(events) == [
        *("input 10-20", "begin 20", "compute 30-40", "end 50"),
        *("input 50-60", "begin 60", "compute 70-80", "end 80"),
    ]


def test_without_a_fetch_a_step_ends_at_the_next_training_call() -> None:
    def events(loop: Loop) -> None:
        loop.train()
        loop.train()
        loop.finish()

    assert lines(events) == [
        "begin 10",
        "compute 10-20",
        "end 30",
        "begin 30",
        "compute 30-40",
        "end 40",
    ]


def test_a_call_that_turns_out_to_train_opens_its_step_afterwards() -> None:
    def events(loop: Loop) -> None:
        loop.fetch()
        loop.train(known=False)
        loop.fetch()
        loop.train(known=False)
        loop.finish()

    assert lines(events) == [
        *("input 10-20", "begin 20", "compute 30-40", "end 50"),
        *("input 50-60", "begin 60", "compute 70-80", "end 80"),
    ]


def test_updates_with_one_batch_are_one_step() -> None:
    """Generator and discriminator, for example."""

    def events(loop: Loop) -> None:
        for _ in range(2):
            loop.fetch()
            loop.train()
            loop.train()
        loop.finish()

    assert lines(events) == [
        *("input 10-20", "begin 20", "compute 30-40", "compute 50-60", "end 70"),
        *("input 70-80", "begin 80", "compute 90-100", "compute 110-120", "end 120"),
    ]


def test_a_loop_that_keeps_its_batch_makes_a_step_of_each_update() -> None:
    def events(loop: Loop) -> None:
        loop.fetch()
        for _ in range(100):
            loop.train()
        loop.fetch()
        loop.train()
        loop.train()
        loop.finish()

    told = lines(events)
    assert [line.split()[0] for line in told if "input" in line] == ["input", "input"]
    assert sum(line.startswith("begin") for line in told) == 1 + (100 - 16) + 2


def test_fetches_and_calls_before_one_update_are_one_step() -> None:
    def events(loop: Loop) -> None:
        for _ in range(2):
            loop.fetch()
            loop.train(updates=False)
        loop.apply()
        loop.fetch()

    assert lines(events) == [
        *("input 10-20", "begin 20", "compute 30-40", "input 50-60", "compute 70-80"),
        *("optimizer 90-100", "end 110"),
    ]


def test_several_batches_for_one_call_are_all_its_input() -> None:
    def events(loop: Loop) -> None:
        loop.fetch()
        loop.fetch()
        loop.train()

    assert lines(events) == ["input 10-20", "input 30-40", "begin 40", "compute 50-60"]


def test_a_call_on_the_batch_that_trains_nothing_leaves_it_input() -> None:
    def events(loop: Loop) -> None:
        loop.fetch()
        loop.other()
        loop.train()

    assert lines(events) == ["input 10-20", "begin 20", "compute 50-60"]


def test_batches_of_a_validation_are_no_input() -> None:
    def events(loop: Loop) -> None:
        loop.fetch()
        loop.train()
        for _ in range(2):
            loop.fetch(VALIDATION)
            loop.other()
        loop.exhaust(VALIDATION)
        loop.fetch()
        loop.train()

    assert lines(events) == [
        *("input 10-20", "begin 20", "compute 30-40", "end 50"),
        *("host fetch 50-60", "host fetch 90-100"),
        *("input 150-160", "begin 160", "compute 170-180"),
    ]


def test_a_call_that_fails_was_no_step() -> None:
    def events(loop: Loop) -> None:
        loop.fail()
        loop.train()
        loop.fail()
        loop.finish()

    assert lines(events) == [
        *("begin 10", "cancel", "begin 30", "compute 30-40", "end 50", "begin 50", "cancel"),
    ]


def test_a_second_call_that_fails_leaves_the_step_open() -> None:
    def events(loop: Loop) -> None:
        loop.train(updates=False)
        loop.fail()
        loop.apply()
        loop.finish()

    assert lines(events) == ["begin 10", "compute 10-20", "optimizer 50-60", "end 60"]


def test_a_checkpoint_ends_a_step_that_was_updated_only() -> None:
    def events(loop: Loop) -> None:
        loop.train(updates=False)
        loop.interrupt()
        loop.apply()
        loop.interrupt()
        loop.interrupt()

    assert lines(events) == ["begin 10", "compute 10-20", "optimizer 50-60", "end 70"]


def test_an_update_outside_of_any_step_is_none() -> None:
    """Slots of an optimizer are made by applying gradients that are zero."""

    def events(loop: Loop) -> None:
        loop.apply()
        loop.finish()

    assert lines(events) == []


def test_a_loop_that_only_reads_makes_no_steps_and_keeps_few_fetches() -> None:
    def events(loop: Loop) -> None:
        for _ in range(1000):
            loop.fetch()
            loop.other()

    told = lines(events)
    assert len(told) == 999
    assert {line.split()[0] for line in told} == {"host"}


def test_fetches_that_nothing_follows_do_not_pile_up() -> None:
    def events(loop: Loop) -> None:
        for _ in range(1000):
            loop.fetch()

    assert len(lines(events)) == 1000 - 256


def test_what_is_unfinished_at_the_end_is_no_step() -> None:
    def events(loop: Loop) -> None:
        loop.tracker.call_begins(10)
        loop.finish()
        loop.finish()

    assert lines(events) == ["begin 10", "cancel"]
