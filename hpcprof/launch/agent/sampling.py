"""Takes samples in a thread of its own: a slow file system must not delay an answer to a ping."""

from __future__ import annotations

import threading
import time

from hpcprof.artifacts.atomic import write_json
from hpcprof.launch.agent import samples
from hpcprof.launch.agent.journal import Journal
from hpcprof.launch.agent.life import Setting

_AFTER_10_MINUTES = (600.0, 10.0)  # age and pause in s: long jobs need no more detail
_AFTER_3_HOURS = (3 * 3600.0, 60.0)


def pause_s(age_s: float, wanted_s: float) -> float:
    """Time between two samples of an agent that has run for ``age_s``."""
    for age, pause in (_AFTER_3_HOURS, _AFTER_10_MINUTES):
        if age_s >= age:
            return max(wanted_s, pause)
    return wanted_s


class Sampling:
    """Samples of one node until ``stop``, and one more then."""

    def __init__(
        self, setting: Setting, journal: Journal, stop: threading.Event, wanted_s: float
    ) -> None:
        self._setting = setting
        self._journal = journal
        self._stop = stop
        self._wanted_s = wanted_s
        self._thread = threading.Thread(target=self._sample_on, daemon=True)

    def start(self, data_dir: str | None) -> None:
        """Begin; ``data_dir`` holds the data set."""
        node = self._setting.identity.node
        self._sampler = samples.Sampler(self._setting.paths, node, data_dir)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait for the last sample, but not longer than ``seconds``."""
        self._thread.join(seconds)

    def _sample_on(self) -> None:
        begun = time.monotonic()
        facts = self._setting.paths.node_facts(self._setting.identity.node)
        try:
            write_json(facts, self._sampler.facts())
        except OSError as error:
            self._journal.note(f"{facts.name} cannot be written: {error.strerror}")
        while True:
            is_last = self._stop.is_set()
            self._journal.samples.append(self._sampler.sample())
            for problem in self._sampler.problems:
                self._journal.note(problem)
            if is_last:
                return
            self._stop.wait(pause_s(time.monotonic() - begun, self._wanted_s))
