"""spans.bin: what becomes of each record, and what a killed rank leaves."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcprof.artifacts import span_format as fmt
from hpcprof.errors import InputError
from hpcprof.readers.spans_reader import SpanRecords, read_span_file
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS, SpanFile

pytestmark = pytest.mark.unit


def read(tmp_path: Path, content: bytes, rank: int = 3) -> SpanRecords:
    path = tmp_path / "spans.bin"
    path.write_bytes(content)
    return read_span_file(path, rank)


def two_steps() -> SpanFile:
    return (
        SpanFile()
        .beacon(0, 5_000_000_100, 5_000_000_300, OPENED_REALTIME_NS + 200)
        .phase(6_000, 7_000, "input", 0)
        .phase(7_200, 8_000, "forward", 0)
        .phase(8_000, 9_000, "allreduce", 0, nbytes=4096)
        .step(7_100, 9_100, 0)
        .phase(9_200, 9_300, "augment", 1)
        .add(9_250, 9_260, "save model", 1, value=100, thread=78)
        .step(9_400, 9_900, 1)
        .add(9_950, 9_960, "teardown")
    )


def test_each_record_becomes_one_span(tmp_path: Path) -> None:
    got = read(tmp_path, two_steps().content)
    assert (got.pid, got.opened) == (4711, (OPENED_REALTIME_NS, OPENED_MONOTONIC_NS))
    assert (got.torn, got.damaged, got.warnings) == (False, 0, ())
    shown = ["start_ns", "end_ns", "kind", "activity", "name", "lane", "replica", "step", "phase"]
    shown += ["bytes", "op", "source"]
    rows = got.spans[shown].astype(object).where(got.spans[shown].notna(), None).values.tolist()
    t, u, s, ar = "thread 77", "thread 78", "hpcprof", "allreduce"
    assert rows == [
        [6_000, 7_000, "phase", "input", "input", t, 0, 0, "input", None, None, s],
        [7_100, 9_100, "step", None, "step", t, 0, 0, None, None, None, s],
        [7_200, 8_000, "phase", "compute", "forward", t, 0, 0, "forward", None, None, s],
        [8_000, 9_000, "phase", "collective", ar, t, 0, 0, ar, 4096, ar, s],
        [9_200, 9_300, "phase", None, "augment", t, 0, 1, "other", None, None, s],
        [9_250, 9_260, "host", None, "save model", u, None, 1, None, 100, None, s],
        [9_400, 9_900, "step", None, "step", t, 0, 1, None, None, None, s],
        [9_950, 9_960, "host", None, "teardown", t, None, None, None, None, None, s],
    ]  # fmt: skip


def test_beacons_are_given_apart_from_the_spans(tmp_path: Path) -> None:
    got = read(tmp_path, two_steps().content)
    assert got.anchors.values.tolist() == [
        [0, 5_000_000_100, 5_000_000_300, OPENED_REALTIME_NS + 200]
    ]
    assert "beacon" not in got.spans["name"].tolist()


def test_the_profiler_at_work_is_a_span_of_its_own_kind_in_no_step(tmp_path: Path) -> None:
    file = two_steps().busy(9_910, 9_940, "profiler stop", 1)
    got = read(tmp_path, file.content)
    assert got.damaged == 0
    (busy,) = got.spans[got.spans["kind"] == "busy"].to_dict("records")
    assert (busy["start_ns"], busy["end_ns"], busy["name"]) == (9_910, 9_940, "profiler stop")
    assert all(pd.isna(busy[name]) for name in ("step", "phase", "replica", "activity", "op"))
    others = got.spans[got.spans["kind"] != "busy"].reset_index(drop=True)
    expected = read(tmp_path, two_steps().content).spans
    assert others.astype(object).equals(expected.astype(object))


def test_file_with_a_header_only_is_empty_not_broken(tmp_path: Path) -> None:
    got = read(tmp_path, SpanFile().content)
    assert (len(got.spans), len(got.anchors), got.warnings) == (0, 0, ())


def test_a_file_cut_at_any_byte_gives_the_records_before_the_cut(tmp_path: Path) -> None:
    file = SpanFile().phase(6_000, 7_000, "input", 0).step(7_100, 9_100, 0)
    first_end = fmt.HEADER.size + 3 * fmt.BLOCK_BYTES  # name, its text, the phase
    for cut in range(fmt.HEADER.size, len(file.content)):
        got = read(tmp_path, file.content[:cut])
        assert got.spans["name"].tolist() == (["input"] if cut >= first_end else []), cut
        assert got.damaged == 0, cut
        # a cut between two blocks shows only where the text of a name is missing
        torn = cut % fmt.BLOCK_BYTES != 0 or cut in (first_end - 80, first_end + 40)
        assert got.torn == torn, cut
        assert any("killed while writing" in text for text in got.warnings) == torn, cut


@pytest.mark.parametrize("length", [0, 1, 39, 40, 41, 80, 200])
def test_names_of_any_length_are_read_across_blocks(tmp_path: Path, length: int) -> None:
    name = ("é" * length).encode()[:length].decode(errors="ignore")
    content = SpanFile().add(1, 2, name).add(3, 4, "after").content
    assert read(tmp_path, content).spans["name"].tolist() == [name, "after"]


def test_a_name_that_looks_like_records_stays_text(tmp_path: Path) -> None:
    record = fmt.RECORD.pack(1, 2, 1, 0, 1, fmt.KIND_STEP, 0)
    hidden = (record + fmt.name_blocks(1, "x")).decode("latin-1").replace("\xff", "\x7f")
    got = read(tmp_path, SpanFile().add(10, 20, hidden).add(30, 40, "after").content)
    assert got.spans["name"].tolist() == [hidden, "after"]
    assert got.damaged == 0


def test_a_name_cut_in_its_text_counts_as_torn(tmp_path: Path) -> None:
    content = SpanFile().add(1, 2, "a").content + fmt.name_blocks(9, "n" * 100)[:-40]
    got = read(tmp_path, content)
    assert (got.torn, got.damaged, got.spans["name"].tolist()) == (True, 0, ["a"])


def test_records_that_make_no_sense_are_counted_and_left_out(tmp_path: Path) -> None:
    good = SpanFile().add(1, 2, "a")
    bad = [
        fmt.RECORD.pack(5, 4, 1, 0, 1, fmt.KIND_HOST, 0),  # ends before it starts
        fmt.RECORD.pack(5, 6, 99, 0, 1, fmt.KIND_HOST, 0),  # name never declared
        fmt.RECORD.pack(5, 6, 1, 0, 1, 200, 0),  # unknown kind
        fmt.RECORD.pack(0, 0, 2, -1, 0, fmt.KIND_NAME, 1 << 40),  # a name of a terabyte
        fmt.name_blocks(1, "other"),  # a second process with names of its own
    ]
    content = good.content + b"".join(bad)
    good.content = content
    got = read(tmp_path, good.add(7, 8, "b").content)
    assert got.spans["name"].tolist() == ["a", "b"]
    assert got.damaged == 5
    assert got.warnings == ("5 records make no sense and were left out",)


def test_garbage_of_a_forked_child_never_raises(tmp_path: Path) -> None:
    generator = random.Random(5)
    for _ in range(50):
        blocks = generator.randbytes(fmt.BLOCK_BYTES * generator.randrange(1, 30))
        got = read(tmp_path, two_steps().content + blocks)
        assert len(got.spans) >= 8
        assert set(two_steps_names()) <= set(got.spans["name"])


def two_steps_names() -> list[str]:
    return ["input", "forward", "allreduce", "step", "augment", "save model", "teardown"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"rank 3: .*spans\.bin ends within its header \(0 bytes\)"),
        (SpanFile().content[:39], r"ends within its header \(39 bytes\)"),
        (b"SQLite format 3\0" * 3, "does not hold span records"),
        (SpanFile(version=2).content, "has format 2, this hpcprof reads 1"),
        (SpanFile(rank=4).content, "was written by rank 4"),
    ],
)
def test_a_broken_header_names_rank_and_file(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_a_missing_file_names_rank_and_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rank 3: .*absent\.bin cannot be read"):
        read_span_file(tmp_path / "absent.bin", 3)


spans = st.tuples(
    st.integers(1, 2**62),
    st.integers(0, 2**61),
    st.text(max_size=100),
    st.integers(-1, 2**31 - 1),
    st.sampled_from([fmt.KIND_HOST, fmt.KIND_STEP, fmt.KIND_PHASE]),
    st.integers(0, 2**61),
    st.integers(0, 2**32 - 1),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(spans, max_size=12))
def test_round_trip(tmp_path: Path, rows: list[tuple]) -> None:
    file = SpanFile()
    for start, length, name, step, kind, value, thread in rows:
        file.add(start, start + length, name, step, kind, value, thread)
    got = read(tmp_path, file.content)
    assert (got.torn, got.damaged) == (False, 0)
    expected = sorted((row[0], row[0] + row[1], row[2], row[5]) for row in rows)
    values = got.spans["bytes"].fillna(0).tolist()
    actual = zip(got.spans["start_ns"], got.spans["end_ns"], got.spans["name"], values, strict=True)
    assert sorted(actual) == expected
    steps = got.spans["step"].to_numpy(dtype=object, na_value=-1)
    assert sorted(steps) == sorted(row[3] for row in rows)
    assert isinstance(got.spans["lane"].dtype, pd.CategoricalDtype)
