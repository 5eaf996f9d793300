"""``store/figures.json``: what the figures of the page show, as plain JSON and back. Draws nothing.

Collect writes it, so that the page can be made again without the traces.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hpcprof.analyses.lateness_map import LatenessMap
from hpcprof.analyses.timeline import Bar, Timeline
from hpcprof.errors import InputError

SCHEMA = 1


@dataclass(frozen=True)
class Figures:
    """The two figures of a run."""

    timeline: Timeline
    lateness: LatenessMap


def figures_record(timeline: Timeline, lateness: LatenessMap) -> dict[str, Any]:
    """Both figures as JSON values; nan becomes null, lateness is rounded to whole ns."""
    bars = {
        field: [getattr(bar, field) for bar in timeline.bars]  # columns: a third of the size
        for field in Bar._fields
    }
    cells = [[_whole(value) for value in row] for row in lateness.lateness_ns]
    return {
        "schema": SCHEMA,
        "timeline": {
            "steps": list(timeline.steps),
            "origin_ns": timeline.origin_ns,
            "ranks": list(timeline.ranks),
            "nodes": list(timeline.nodes),
            "bars": bars,
            "dropped": timeline.dropped,
            "ranks_left_out": timeline.ranks_left_out,
        },
        "lateness": {
            **asdict(lateness),
            "ranks": list(lateness.ranks),
            "nodes": list(lateness.nodes),
            "lateness_ns": cells,
            "limit_ns": round(lateness.limit_ns),
            "baseline_ranks": list(lateness.baseline_ranks),
        },
    }


def read_figures(record: dict[str, Any]) -> Figures:
    """The inverse of ``figures_record``. Raises InputError for a record of another version."""
    if record.get("schema") != SCHEMA:
        raise InputError(
            "the figures were written by another version of hpcprof; run hpcprof collect again"
        )
    drawn = record["timeline"]
    columns = [drawn["bars"][field] for field in Bar._fields]
    timeline = Timeline(
        steps=tuple(drawn["steps"]),
        origin_ns=drawn["origin_ns"],
        ranks=tuple(drawn["ranks"]),
        nodes=tuple(drawn["nodes"]),
        bars=tuple(Bar(*values) for values in zip(*columns, strict=True)),
        dropped=drawn["dropped"],
        ranks_left_out=drawn["ranks_left_out"],
    )
    return Figures(timeline, _lateness(record["lateness"]))


def _lateness(record: dict[str, Any]) -> LatenessMap:
    cells = record["lateness_ns"]
    return LatenessMap(
        ranks=tuple(record["ranks"]),
        nodes=tuple(record["nodes"]),
        first_step=record["first_step"],
        last_step=record["last_step"],
        steps_per_bin=record["steps_per_bin"],
        lateness_ns=tuple(tuple(math.nan if v is None else float(v) for v in row) for row in cells),
        limit_ns=float(record["limit_ns"]),
        baseline_ranks=tuple(record["baseline_ranks"]),
        ranks_left_out=record["ranks_left_out"],
    )


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)
