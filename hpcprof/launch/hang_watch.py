"""Notices from outside that a training hangs, when its own watchdog cannot say so.

A thread that holds Python's lock inside a driver or a collective stops annotate's watchdog too.
What is left to see from here: the span file does not grow, and what the kernel says of the threads.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from hpcprof.artifacts import node_time, span_format

LOOK_SECONDS = 10.0  # a stat on a shared file system, by every rank
# what the training's own watchdog gets in addition: it says more than we can
GRACE_SECONDS = 30.0
_MAX_ENTRIES = 3  # as many as the training's own watchdog writes
_MAX_LINES = 30  # a TensorFlow process has a hundred threads, most of them alike


class HangWatch:
    """Looks at the growth of one rank's span file."""

    def __init__(self, spans: Path, hang_after_s: float) -> None:
        """``hang_after_s`` seconds without a step are too long."""
        self._spans = spans
        self._limit = hang_after_s + GRACE_SECONDS
        self._size = 0
        self._grown_at = 0.0
        self._look_at = 0.0
        self._is_known = False
        self._left = _MAX_ENTRIES

    def is_told(self) -> None:
        """The training has said itself that it hangs: nothing to add until it goes on."""
        self._is_known = True

    def look(self, now: float) -> dict[str, Any] | None:
        """An entry for the manifest's ``hangs``, once per hang; else None. ``now`` in seconds."""
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_SECONDS
        try:
            size = os.stat(self._spans).st_size
        except OSError:
            return None  # no step has been marked: nothing is known
        if size != self._size:
            self._size, self._grown_at, self._is_known = size, now, False
            return None
        seconds = now - self._grown_at
        if self._is_known or seconds < self._limit or not self._left:
            return None
        self._is_known = True
        self._left -= 1
        pid = _recording_pid(self._spans)
        if pid is None:
            return None  # the training has stopped recording; it may do what it likes
        return {
            "step": None,
            "seconds": round(seconds, 1),
            "at": {
                "realtime_ns": node_time.realtime_ns(),
                "monotonic_ns": node_time.monotonic_ns(),
            },
            "threads": _threads(pid),
        }


def _recording_pid(spans: Path) -> int | None:
    """The process that has the file open; None when it has closed it, or cannot be seen."""
    try:
        with open(spans, "rb") as stream:
            header = span_format.HEADER.unpack(stream.read(span_format.BLOCK_BYTES))
        pid = int(header[3])
        names = os.listdir(f"/proc/{pid}/fd")
    except (OSError, ValueError, struct.error):
        return None
    for name in names:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").endswith("/" + spans.name):
                return pid
        except OSError:
            continue
    return None


def _threads(pid: int) -> list[str]:
    """``comm: state, wchan`` of each thread, equal ones counted, the most frequent first.

    wchan is where in the kernel it waits; "0": it runs, or the system does not say.
    """
    found: Counter[str] = Counter()
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for task in tasks:
        folder = f"/proc/{pid}/task/{task}"
        status = _read(f"{folder}/stat").rpartition(")")[2].split()
        state = status[0] if status else "?"
        found[f"{_read(f'{folder}/comm')}: {state}, {_read(f'{folder}/wchan') or '0'}"] += 1
    lines = [
        text if count == 1 else f"{text} ({count} threads)" for text, count in found.most_common()
    ]
    return lines[:_MAX_LINES]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""
