"""Spans belong to the step during which they start, and to the one they were fetched for."""

from __future__ import annotations

import pandas as pd
import pytest

from hpcprof.readers.steps import assign_steps
from hpcprof.trace import check_spans, empty_spans, spans_frame

pytestmark = pytest.mark.unit


def table(rows: list[tuple], source: str = "nsys") -> pd.DataFrame:
    """Spans (start, end, kind, name, step)."""
    starts, ends, kinds, names, steps = zip(*rows, strict=True)
    return spans_frame(
        {
            "start_ns": list(starts),
            "end_ns": list(ends),
            "kind": list(kinds),
            "name": list(names),
            "step": list(steps),
            "phase": [n if k == "phase" else None for n, k in zip(names, kinds, strict=True)],
            "source": source,
        }
    )


OWN = table(
    [
        (100, 150, "phase", "input", 4),
        (160, 300, "step", "step", 4),
        (310, 350, "phase", "input", 5),
        (360, 500, "step", "step", 5),
        (700, 800, "step", "step", 9),
    ],
    "hpcprof",
)


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (99, None),
        (100, 4),
        (155, 4),
        (299, 4),
        (300, 5),
        (499, 5),
        (500, 9),
        (799, 9),
        (800, None),
    ],
)
def test_a_step_reaches_from_the_end_of_the_one_before_to_its_own(start, step) -> None:
    got = assign_steps(table([(start, 10_000, "kernel", "k", None)]), OWN)
    assert check_spans(got)["step"].tolist() == [pd.NA if step is None else step]


def test_a_step_that_is_known_stays() -> None:
    got = assign_steps(table([(200, 210, "host", "h", 77), (201, 205, "host", "h", None)]), OWN)
    assert got["step"].tolist() == [77, 4]


def test_without_steps_nothing_is_assigned() -> None:
    spans = table([(200, 210, "kernel", "k", None)])
    assert assign_steps(spans, empty_spans())["step"].isna().all()
    assert assign_steps(empty_spans(), OWN).empty


def test_the_first_step_without_input_begins_with_itself() -> None:
    own = OWN[OWN["kind"] == "step"].reset_index(drop=True)
    got = assign_steps(table([(159, 161, "kernel", "k", None), (160, 161, "io", "r", None)]), own)
    assert got["step"].tolist() == [pd.NA, 4]
