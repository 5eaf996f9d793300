"""What the training leaves in its state folder while it runs, brought into the manifest.

Written down as it comes: the rank may be killed together with us.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from hpcprof.artifacts import node_time, rank_state
from hpcprof.launch import gpus
from hpcprof.launch.hang_watch import HangWatch
from hpcprof.launch.rank_record import RankRecord

_LOOK_SECONDS = 1.0
_MAX_HANGS = 10  # the manifest has 16 KiB reserved on a full disk


class RankMessages:
    """The messages of one rank. ``hang_count``: how often the training has hung so far."""

    def __init__(self, record: RankRecord, state: Path, hang_after_s: float) -> None:
        """``hang_after_s`` 0: only what the training says itself counts as a hang."""
        self.state = state
        self.hang_count = 0
        self._record = record
        self._hang_after_s = hang_after_s
        self._watch: HangWatch | None = None
        if hang_after_s > 0:
            self._watch = HangWatch(record.paths.spans(record.identity.rank), hang_after_s)
        self._hangs: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {}
        self._last_hang = ""
        self._look_at = 0.0
        self._is_answered = False

    def look(self) -> None:
        """Take what has come, at most once a second."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self.read()

    def read(self) -> None:
        """Take what has come."""
        found = dict(self._fields)
        version = rank_state.find(self.state, rank_state.NVTX_VERSION)
        if version is not None:
            found["nvtx_version"] = version.strip() or None
        size = (rank_state.find(self.state, rank_state.HOROVOD_SIZE) or "").strip()
        if size.isdigit():
            found["horovod_size"] = int(size)
        if "gpus" not in found:
            answer = gpus.result(self.state)
            if answer is not None:
                found["gpus"] = answer
        hang = self._new_hang()
        if hang is not None:
            self.hang_count += 1
            self._hangs = [*self._hangs, hang][:_MAX_HANGS]
            found["hangs"] = self._hangs
        if found != self._fields:
            self._fields = found
            self._record.update(**found)

    def stop_wanted(self) -> str | None:
        """Why somebody wants the recording to end, None as long as nobody does."""
        return rank_state.find(self.state, rank_state.STOP)

    def answer(self, text: str) -> None:
        """Tell whoever has left STOP, once; nobody has as a rule. ``text``: ok or problem first."""
        if self._is_answered or self.stop_wanted() is None:
            return
        self._is_answered = True
        with contextlib.suppress(OSError):  # whoever asked waits a while and goes on
            rank_state.leave(self.state, rank_state.STOPPED, text)

    def _new_hang(self) -> dict[str, Any] | None:
        text = rank_state.find(self.state, rank_state.HANG)
        if text is not None and text != self._last_hang:
            self._last_hang = text
            if self._watch is not None:
                self._watch.is_told()
            return _hang_entry(text, self._hang_after_s)
        return self._watch.look(time.monotonic()) if self._watch is not None else None


def _hang_entry(text: str, seconds: float) -> dict[str, Any]:
    """The manifest's entry of a message HANG."""
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if isinstance(entry, dict):
        return entry
    now = {"realtime_ns": node_time.realtime_ns(), "monotonic_ns": node_time.monotonic_ns()}
    return {"step": None, "seconds": seconds, "at": now}
