"""Writes ``samples.jsonl`` of a node as its agent does. For tests of what test reads say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hpcprof.artifacts.node_records import SAMPLE
from hpcprof.artifacts.paths import ArtifactPaths

MS = 1_000_000
EVERY_NS = 1_000_000_000
Counters = dict[str, Any]


def read(ms: float) -> Counters:
    """A test read that took ``ms`` to open and read a file: a quarter of it for opening."""
    times = {"canary_open_ns": round(ms * MS / 4), "canary_read_ns": round(ms * MS * 3 / 4)}
    return {"canary_stat_ns": 900, **times, "canary_read_bytes": 65536}


def pending(ms: float) -> Counters:
    """A test read that has not come back after ``ms``."""
    return {"canary_pending_ns": round(ms * MS)}


def failed(errors: int) -> Counters:
    """A test read that failed; it was number ``errors``."""
    return {"canary_errors": errors}


def write_samples(
    paths: ArtifactPaths, node: str, looks: Sequence[Counters], start_ns: int = EVERY_NS
) -> None:
    """One sample per second from ``start_ns`` on the clock of the node, with these counters."""
    paths.node_folder(node).mkdir(parents=True, exist_ok=True)
    records = [
        {
            **{"kind": SAMPLE, "monotonic_ns": start_ns + i * EVERY_NS},
            "counters": {"cpu_busy_frac": 0.5, **counters},
            "ranks": {"0": {"rchar_bytes": 512 * i}},
        }
        for i, counters in enumerate(looks)
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    paths.node_samples(node).write_text(text)
