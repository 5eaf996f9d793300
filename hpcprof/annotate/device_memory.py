"""How much memory of each device TensorFlow has given away: asked after steps, a µs or two each.

TensorFlow counts it anyway (``get_memory_info``); its own highest mark is not reset, because the
training may read it too. CPUs do not count, unless TF_CPU_ALLOCATOR_USE_BFC is set; neither does
the allocator cuda_malloc_async of some versions. Raises nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from hpcprof.annotate import training_notes
from hpcprof.annotate.follower import Follower

# samples kept per device; where there would be more, every second one goes and half as many follow
_MOST_SAMPLES = 64


class MemoryWatch:
    """Asks after each step, after every second one when many have been, and so on."""

    def __init__(self) -> None:
        self._devices: list[str] | None = None  # None: nobody asked yet
        self._samples: dict[str, list[list[int]]] = {}
        self._stride = 1
        self._ended = 0

    def step_begins(self, number: int) -> bool:
        """Nothing to do."""
        return False

    def step_ended(self, number: int) -> bool:
        """Ask, unless it is a step to leave out; True where no device counts its memory."""
        self._ended += 1
        if self._ended % self._stride:
            return False
        try:
            self._ask(number)
        except Exception:  # no TensorFlow, or one that we do not know
            return True
        return self._devices == []

    def close(self, number: int) -> None:
        """Nothing to do: what was seen is in the notes already."""

    def _ask(self, number: int) -> None:
        config = sys.modules["tensorflow"].config
        if self._devices is None:
            if not _is_started():
                return
            self._devices = _counting(config)
            self._samples = {device: [] for device in self._devices}
            training_notes.put(memory=self._samples)
        for device in self._devices:
            found = config.experimental.get_memory_info(device)
            samples = self._samples[device]
            samples.append([number, int(found["current"]), int(found["peak"])])
            if len(samples) > _MOST_SAMPLES:
                del samples[::2]
                self._thin(device)

    def _thin(self, device: str) -> None:
        """From now on ask half as often; once for all devices, whose lists are of one length."""
        if self._devices and device == self._devices[-1]:
            self._stride *= 2


def wanted() -> Follower | None:
    """Always: it costs next to nothing, and leaves by itself where there is nothing to see."""
    return MemoryWatch()


def _is_started() -> bool:
    """Whether TensorFlow uses its devices already; a script may have it for its data alone.

    Asking for the devices would start it, and it would take all memory of the GPUs.
    """
    context = sys.modules["tensorflow.python.eager.context"].context_safe()
    return context is not None and bool(context._initialized)


def _counting(config: Any) -> list[str]:
    """The devices ("GPU:0") whose allocator counts; [] for none."""
    names = [device.name.rpartition("device:")[2] for device in config.list_logical_devices()]
    counting = []
    for name in names:
        try:
            config.experimental.get_memory_info(name)
        except Exception:  # ValueError of one that does not; whatever else, it is left out
            continue
        counting.append(name)
    return counting
