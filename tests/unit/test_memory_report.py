"""What the report says of the memory of devices, from splits of known size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import hpcprof
from hpcprof.analyses.memory_split import (
    CLASSES,
    FEATURE_MAPS,
    INSUFFICIENT,
    OK,
    UNCLASSIFIED,
    WEIGHTS,
    MemorySplit,
    Tensor,
)
from hpcprof.reports.document import build_document
from hpcprof.reports.findings_record import findings_record
from hpcprof.trace.model import Training
from tests.unit.results_builder import results

pytestmark = pytest.mark.unit

GB = 10**9


def split(**given):
    sizes = {WEIGHTS: 3 * GB, FEATURE_MAPS: 9 * GB, UNCLASSIFIED: 0, **given.pop("sizes", {})}
    known = MemorySplit(
        allocator="GPU_0_bfc",
        status=OK,
        step=33,
        total_bytes=sum(sizes.values()),
        peak_bytes=13 * GB,
        limit_bytes=80 * GB,
        bytes_by_class={kind: sizes.get(kind, 0) for kind in CLASSES},
        largest=(Tensor(FEATURE_MAPS, "net/conv/Conv2D", 2 * GB), Tensor(WEIGHTS, "", GB)),
    )
    return replace(known, **given)


def document(memory, trainings=()):
    run = results(memory=memory)
    infos = [
        replace(info, training=training)
        for info, training in zip(run.ranks, trainings, strict=False)
    ]
    run = replace(run, ranks=(*infos, *run.ranks[len(infos) :]))
    record = findings_record(run, [], [])
    as_read = json.loads(json.dumps(record, allow_nan=False))
    schema = Path(hpcprof.__file__).parent / "reports" / "findings.schema.json"
    jsonschema.validate(as_read, json.loads(schema.read_text(encoding="utf-8")))
    return build_document(as_read)


def tables(made):
    return {table.title: table for table in made.appendix}


def test_the_fullest_device_is_told_in_a_line_and_all_of_them_in_a_table():
    fuller = split(allocator="GPU_1_bfc", sizes={WEIGHTS: 4 * GB})
    made = document({0: (split(),), 2: (split(), fuller)})
    assert dict(made.facts)["memory"] == (
        "13 GB of 80 GB at the peak (rank 2, GPU_1_bfc, step 33): feature maps 69 %, weights 31 %"
    )
    table = tables(made)["memory at the peak"]
    assert table.heads == (
        *("rank", "allocator", "step", "in use", "limit"),
        *("weights", "feature maps"),
    )
    assert [row[:2] for row in table.rows] == [
        ("0", "GPU_0_bfc"),
        ("2", "GPU_0_bfc"),
        ("2", "GPU_1_bfc"),
    ]
    assert table.rows[0][3:] == ("12 GB", "80 GB", "3 GB (25 %)", "9 GB (75 %)")
    largest = tables(made)["largest blocks at the peak"]
    assert largest.rows[0] == ("2 GB", "feature maps", "net/conv/Conv2D")
    assert largest.note == "Of rank 2, GPU_1_bfc, step 33."


def test_a_division_that_is_not_to_be_trusted_is_said_to_be():
    made = document({0: (split(sizes={UNCLASSIFIED: 3 * GB}, older_bytes=3 * GB),)})
    said = [text for label, text in made.facts if label == ""]
    assert said[0].startswith("20 % of it is unclassified (XLA")
    assert said[1].startswith("watching began after the model was built")
    assert "not to be trusted" in tables(made)["memory at the peak"].note


def test_memory_that_could_not_be_divided_is_not_measured_and_has_no_number():
    made = document({3: (MemorySplit("GPU_0_bfc", INSUFFICIENT, "no step was watched"),)})
    assert "memory" not in dict(made.facts)
    assert "memory at the peak" not in tables(made)
    assert (
        "not measured",
        "what fills the memory of rank 3 (GPU_0_bfc): no step was watched",
    ) in made.remarks


def test_the_most_of_every_device_is_told_without_any_profiler():
    seen = [
        Training(memory={"GPU:0": ((1, 2 * GB, 3 * GB), (40, 2 * GB, peak * GB))})
        for peak in (5, 7)
    ]
    made = document({}, [*seen, Training()])
    assert dict(made.facts)["memory"] == (
        "at most 7 GB in use by TensorFlow (rank 1, GPU:0); on the emptiest of 2 devices 5 GB"
    )
    table = tables(made)["memory of each device"]
    assert table.rows == (("0", "GPU:0", "5 GB"), ("1", "GPU:0", "7 GB"))
    both = document({0: (split(),)}, seen)
    labels = [label for label, _ in both.facts]
    assert labels.count("memory") == 1
    assert list(tables(both))[:3] == [
        "memory of each device",
        "memory at the peak",
        "largest blocks at the peak",
    ]


def test_without_anybody_who_watched_nothing_is_said():
    made = document({})
    assert "memory" not in dict(made.facts)
    assert not any("memory" in title for title in tables(made))
