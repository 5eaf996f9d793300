"""The life of one node agent: meet the others, measure at the start, every while and at the end.

It runs beside the training and must cost it nothing: whatever fails is noted, and the agent goes on
with what is left.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from hpcprof.artifacts import node_records, node_time
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.launch.agent import measure
from hpcprof.launch.agent.ending import Ending
from hpcprof.launch.agent.journal import Journal
from hpcprof.launch.agent.transport import PeerSilentError, Transport

REFERENCE_TASK = 0
_MEET_SECONDS = 60.0  # network file systems show a new file late
_NEIGHBOUR_SECONDS = 10.0  # one agent that did not start must not cost others their clocks
_BURST_SECONDS = 5.0
_LAST_BURST_SECONDS = 1.5
_SLOT_SECONDS = 0.1  # bursts of different tasks are that far apart, or less when there are many
_LAST_SLOTS_SECONDS = 2.0
_LINGER_SECONDS = 0.5


class Setting(NamedTuple):
    """Who and where an agent is. ``interval_s`` lies between two bursts."""

    paths: ArtifactPaths
    identity: RankEnv
    interval_s: float


class Life:
    """One agent with its transport. ``live`` returns when the agent was asked to end."""

    def __init__(
        self, setting: Setting, journal: Journal, transport: Transport, ending: Ending
    ) -> None:
        self._setting = setting
        self._journal = journal
        self._transport = transport
        self._ending = ending
        self._task = setting.identity.rank
        self._tasks = setting.identity.world_size
        self._burst_number = 0
        self._begun_with: str | None = None

    def live(self) -> None:
        """Measure until an ending signal, then once more, and write how it ended."""
        self._meet()
        self._begin()
        interval = self._setting.interval_s
        turn = self._task * min(_SLOT_SECONDS, interval / (2 * self._tasks))
        begun = time.monotonic() + turn
        self._serve_until(begun)
        while not self._ending.stop.is_set():
            self._burst()
            passed = (time.monotonic() - begun) // interval + 1
            self._serve_until(begun + passed * interval)
        self._end()

    def _meet(self) -> None:
        """Wait until those that we measure first are known, but not long for neighbours."""
        needed = {REFERENCE_TASK, *self._neighbours()}
        begun = time.monotonic()
        pause = 0.1
        while not self._transport.seek(needed) and not self._ending.stop.is_set():
            waited = time.monotonic() - begun
            has_reference = REFERENCE_TASK in self._transport.nodes
            if waited > (_NEIGHBOUR_SECONDS if has_reference else _MEET_SECONDS):
                missing = sorted(needed - set(self._transport.nodes))
                self._journal.note(f"after {waited:.0f} s no agent was seen of tasks {missing}")
                return
            self._transport.serve(pause, self._ending.stop)
            pause = min(2 * pause, 2.0)

    def _begin(self) -> None:
        """Write who we are and whose clock we compare with, as far as that is known."""
        self._begun_with = self._transport.nodes.get(REFERENCE_TASK)
        self._journal.begin(
            {
                "schema": node_records.SCHEMA,
                "node": self._setting.identity.node,
                "reference": self._begun_with,
                "transport": self._transport.name,
                "pid": os.getpid(),
                "monotonic_ns": node_time.monotonic_ns(),
                "realtime_ns": node_time.realtime_ns(),
            }
        )

    def _serve_until(self, moment: float) -> None:
        self._transport.serve(moment - time.monotonic(), self._ending.stop)

    def _burst(self, *, is_last: bool = False) -> None:
        """Measure once; when it takes long, or the end has come meanwhile, nothing new is begun."""
        seconds = _LAST_BURST_SECONDS if is_last else _BURST_SECONDS
        deadline = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() > deadline or (not is_last and self._ending.stop.is_set())

        self._journal.clock.append(measure.wall_reading())
        if self._task != REFERENCE_TASK:
            self._measure_clock(is_over)
        for task in self._neighbours():
            if not is_over():
                self._measure_link(task, is_over)
        self._transport.rest()
        self._burst_number += 1

    def _neighbours(self) -> list[int]:
        return measure.neighbours(self._task, self._tasks, self._burst_number)

    def _measure_clock(self, is_over: measure.IsOver) -> None:
        try:
            exchanges = measure.clock_burst(self._transport, REFERENCE_TASK, is_over)
        except PeerSilentError as error:
            self._journal.note(f"the clock could not be compared: {error}")
            return
        if self._begun_with is None:  # it was seen late; exchanges need to say with whom
            self._begin()
        for exchange in exchanges:
            self._journal.clock.append(measure.exchange_record(self._burst_number, exchange))

    def _measure_link(self, task: int, is_over: measure.IsOver) -> None:
        try:
            records = measure.probe_link(self._transport, task, is_over)
        except PeerSilentError as error:
            self._journal.note(f"a link could not be measured: {error}")
            return
        for record in records:
            self._journal.links.append(record)

    def _end(self) -> None:
        """All agents are asked to end together: take turns once more, and stay for the others."""
        slot = min(_SLOT_SECONDS, _LAST_SLOTS_SECONDS / self._tasks)
        begun = time.monotonic()
        never = self._ending.never
        self._transport.serve(self._task * slot, never)
        self._burst(is_last=True)
        if self._tasks > 1:
            stay_until = begun + self._tasks * slot + _LINGER_SECONDS
            self._transport.serve(stay_until - time.monotonic(), never)
        self._journal.clock.append(
            {
                "kind": node_records.END,
                "reason": self._ending.reason,
                "monotonic_ns": node_time.monotonic_ns(),
            }
        )
