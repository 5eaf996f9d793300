"""What a manifest notes beside who the rank was: profiler at work, GPUs, hangs, Horovod's size.

Every one of these may be missing (older manifests) or damaged; then it counts as not known, and a
damaged one is told. None of them keeps a rank from being read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from hpcprof.trace.columns import BUSY
from hpcprof.trace.frame import empty_spans, spans_frame
from hpcprof.trace.model import Gpu, Hang

SOURCE = "launcher"
_LATEST_NS = 2**63 - 1
_LARGEST_COUNT = 2**31 - 1

T = TypeVar("T")


class BusyTime(NamedTuple):
    """The profiler starts, stops or writes, on the CLOCK_MONOTONIC of the node."""

    start_ns: int
    end_ns: int
    why: str


@dataclass(frozen=True)
class ManifestNotes:
    """``gpus`` and ``horovod_size`` as in RankInfo; ``nvtx_version`` is "" when not known.

    ``warnings``: what was damaged and is ignored, in words.
    """

    busy: tuple[BusyTime, ...]
    gpus: tuple[Gpu, ...] | None
    horovod_size: int | None
    nvtx_version: str
    hangs: tuple[Hang, ...]
    warnings: tuple[str, ...]

    def busy_spans(self) -> pd.DataFrame:
        """The times at which the profiler was at work, as spans on the node's clock."""
        if not self.busy:
            return empty_spans()
        return spans_frame(
            {
                "start_ns": [time.start_ns for time in self.busy],
                "end_ns": [time.end_ns for time in self.busy],
                "kind": BUSY,
                "name": [time.why for time in self.busy],
                "source": SOURCE,
            }
        )


def manifest_notes(record: Mapping[str, Any]) -> ManifestNotes:
    """The notes of a manifest that has been read. Raises nothing."""
    warnings: list[str] = []
    busy = _entries(record, "profiler_busy", _busy, warnings)
    gpus = None if record.get("gpus") is None else _entries(record, "gpus", _gpu, warnings)
    size = record.get("horovod_size")
    if size is not None and not _is_count(size):
        warnings.append(_damaged("horovod_size"))
        size = None
    version = record.get("nvtx_version")
    return ManifestNotes(
        busy=busy,
        # half of a list of GPUs would make a rank seem to see one only
        gpus=None if _damaged("gpus") in warnings else gpus,
        horovod_size=size,
        nvtx_version=version.strip() if isinstance(version, str) else "",
        hangs=_entries(record, "hangs", _hang, warnings),
        warnings=tuple(warnings),
    )


def _entries(
    record: Mapping[str, Any], key: str, read: Callable[[Any], T], warnings: list[str]
) -> tuple[T, ...]:
    """The entries of a list that make sense; a warning when anything does not."""
    found: list[T] = []
    given = record.get(key)
    if given is None:
        return ()
    whole = isinstance(given, list)
    for entry in given if whole else []:
        try:
            found.append(read(entry))
        except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
            whole = False
    if not whole:
        warnings.append(_damaged(key))
    return tuple(found)


def _damaged(key: str) -> str:
    text = f"{key} in the manifest makes no sense; what does not is ignored"
    if key != "profiler_busy":
        return text
    return f"{text}, and steps in which nsys was at work may be among those compared"


def _busy(entry: Any) -> BusyTime:
    start, end, why = entry
    if not (_is_integer(start) and _is_integer(end) and 0 < start <= end <= _LATEST_NS):
        raise ValueError(entry)
    return BusyTime(start, end, str(why) or "nsys")


def _gpu(entry: Any) -> Gpu:
    if not _is_count(entry["visible"], least=0):
        raise ValueError(entry)
    return Gpu(entry["visible"], _text(entry.get("uuid")), _text(entry.get("name")))


def _hang(entry: Any) -> Hang:
    step, seconds = entry.get("step"), float(entry["seconds"])
    if not 0 <= seconds < _LARGEST_COUNT or not (step is None or _is_count(step, least=-1)):
        raise ValueError(entry)
    at_ns: Any = (entry.get("at") or {}).get("monotonic_ns")
    return Hang(
        step=step,
        seconds=seconds,
        at_ns=at_ns if _is_integer(at_ns) and 0 < at_ns <= _LATEST_NS else None,
        has_stacks="threads" not in entry,  # the launcher looked at threads, from outside
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any, least: int = 1) -> bool:
    return _is_integer(value) and least <= value <= _LARGEST_COUNT
