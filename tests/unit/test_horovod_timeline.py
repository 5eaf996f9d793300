"""Horovod's timeline in the shapes it is found in: closed, open, cut, damaged, rotated."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from hpcprof.analyses.horovod_phases import HorovodPhases, horovod_phases
from hpcprof.errors import InputError
from hpcprof.readers.horovod_timeline import read_timeline, to_spans
from hpcprof.trace import columns as c
from hpcprof.trace.frame import anchors_frame

pytestmark = pytest.mark.unit

EPOCH_US = 1_700_000_000_000_000
META = {"name": "process_name", "ph": "M", "pid": 0}
META["args"] = {"start_time_since_epoch_in_micros": EPOCH_US}


def named(pid, name):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def begin(pid, name, ts):
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end(pid, ts, **args):
    return {"ph": "E", "ts": ts, "pid": pid, **({"args": args} if args else {})}


def tick(pid, rank, ts):
    return {"ph": "X", "name": str(rank), "ts": ts, "pid": pid, "dur": 0}


def operation(pid, at, ticks=()):
    """A negotiation of 100 µs, then an allreduce of 60 µs with one piece of 40 µs."""
    return [
        begin(pid, "NEGOTIATE_ALLREDUCE", at),
        *(tick(pid, rank, at + late) for rank, late in ticks),
        end(pid, at + 100),
        begin(pid, "ALLREDUCE", at + 110),
        begin(pid, "NCCL_ALLREDUCE", at + 120),
        end(pid, at + 160),
        end(pid, at + 170, dtype="float32", shape="[64, 10]"),
    ]


EVENTS = [META, named(1, "dense/kernel"), *operation(1, 1000, ticks=[(0, 1), (3, 90)])]


def written(tmp_path, content):
    path = tmp_path / "timeline.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(events):
    return ",\n".join(json.dumps(event) for event in events)


def check_whole(timeline):
    """The one operation of EVENTS, with truth computed by hand."""
    row = timeline.operations.astype(object).iloc[0]
    assert len(timeline.operations) == 1
    assert (row["tensor"], row["op"], row["bytes"]) == ("dense/kernel", "allreduce", 2560)
    assert (row["negotiate_start_ns"], row["negotiate_end_ns"]) == (1_000_000, 1_100_000)
    assert (row["start_ns"], row["end_ns"]) == (1_110_000, 1_170_000)
    assert timeline.pieces.astype(object).to_numpy().tolist() == [
        [0, "nccl_allreduce", 1_120_000, 1_160_000]
    ]
    assert timeline.ready_ns(0) == {0: 1_001_000, 3: 1_090_000}
    assert timeline.start_time_since_epoch == EPOCH_US * 1000
    assert timeline.tensors == ("dense/kernel",)
    assert timeline.with_ticks == 1


@pytest.mark.parametrize(
    "content",
    [
        "[\n" + lines(EVENTS) + "\n]\n",
        "[\n" + lines(EVENTS),
        "[\n" + lines(EVENTS) + ",\n",
        "[\n" + lines(EVENTS) + "]",
        json.dumps(EVENTS),
        "[" + ",".join(json.dumps(event, separators=(",", ":")) for event in EVENTS),
        ("[\r\n" + lines(EVENTS) + "\r\n]").replace(",\n", ",\r\n"),
    ],
    ids=["closed", "open", "trailing-comma", "horovod", "one-line", "compact", "crlf"],
)
def test_every_way_to_end_the_array_reads_the_same(tmp_path, content):
    timeline = read_timeline(written(tmp_path, content))
    check_whole(timeline)
    assert timeline.warnings == ()


def test_half_a_last_event_is_left_out_and_told(tmp_path):
    more = json.dumps(begin(1, "NEGOTIATE_ALLREDUCE", 2000))
    for cut in (1, 5, len(more) - 1):
        timeline = read_timeline(written(tmp_path, "[\n" + lines(EVENTS) + ",\n" + more[:cut]))
        check_whole(timeline)
        assert timeline.warnings == (
            "the last event was cut in the middle and left out (killed while writing)",
        )


@pytest.mark.parametrize("content", ["", "[", "[\n", "[\n]\n"])
def test_a_timeline_without_events_holds_nothing_and_says_so(tmp_path, content):
    timeline = read_timeline(written(tmp_path, content))
    assert (len(timeline.operations), len(timeline.pieces), len(timeline.ticks)) == (0, 0, 0)
    assert (timeline.start_time_since_epoch, timeline.tensors) == (None, ())
    assert timeline.warnings[0] == "the timeline holds no operation"


@pytest.mark.parametrize("odd", [b"\n", b"\x00", b"\xff\xfe"])
def test_raw_bytes_within_the_name_of_a_tensor_do_no_harm(tmp_path, odd):
    text = ("[\n" + lines(EVENTS) + "\n]").encode().replace(b"dense/kernel", b"dense" + odd)
    timeline = read_timeline(written(tmp_path, text))
    assert timeline.tensors == (f"dense{odd.decode('utf-8', 'replace')}",)
    assert timeline.operations["end_ns"].tolist() == [1_170_000]
    assert timeline.warnings == ()


def test_an_unescaped_quote_in_a_name_costs_the_name_only(tmp_path):
    text = ("[\n" + lines(EVENTS) + "\n]").replace("dense/kernel", 'dense"kernel')
    timeline = read_timeline(written(tmp_path, text))
    assert timeline.tensors == ("tensor 1",)
    assert timeline.operations["end_ns"].tolist() == [1_170_000]
    assert timeline.warnings == ("1 events make no sense and were left out",)


def test_a_broken_event_in_the_middle_does_not_take_its_neighbours_along(tmp_path):
    whole = [json.dumps(event) for event in EVENTS]
    broken = [*whole[:2], '{"ph": "B", "na', *whole[2:]]
    timeline = read_timeline(written(tmp_path, "[\n" + ",\n".join(broken) + "]"))
    check_whole(timeline)
    assert timeline.warnings == ("1 events make no sense and were left out",)


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "B", "name": "ALLREDUCE", "ts": "soon", "pid": 9},
        {"ph": "B", "name": "ALLREDUCE", "ts": 1e300, "pid": 9},
        {"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": None},
        {"ph": "?", "name": "ALLREDUCE", "ts": 1, "pid": 9},
        {"ph": "X", "name": "rank", "ts": 1, "pid": 9},
        7,
    ],
)
def test_an_event_that_makes_no_sense_is_counted(tmp_path, odd):
    timeline = read_timeline(written(tmp_path, "[\n" + lines([*EVENTS, odd]) + "]"))
    check_whole(timeline)
    assert timeline.warnings == ("1 events make no sense and were left out",)


def test_how_many_operations_have_ticks_is_said(tmp_path):
    events = [META, named(1, "a")]
    for k in range(10):
        events += operation(1, 1000 * k, ticks=[(4, 2), (5, 7)] if k < 3 else [])
    timeline = read_timeline(written(tmp_path, lines(events)))
    assert (timeline.with_ticks, len(timeline.operations)) == (3, 10)
    assert timeline.ready_ns(1) == {4: 1_002_000, 5: 1_007_000}
    assert timeline.ready_ns(3) == {}
    assert "is known for 3 of 10 operations" in timeline.warnings[0]


def test_a_later_part_gives_what_it_holds_and_counts_the_rest(tmp_path):
    events = [META, end(1, 5), tick(2, 4, 6), named(1, "a"), *operation(1, 1000, ticks=[(1, 1)])]
    timeline = read_timeline(written(tmp_path, lines(events)))
    assert timeline.operations["end_ns"].tolist() == [1_170_000]
    assert timeline.warnings == (
        "2 ends and ready ticks belong to nothing that was recorded before "
        "(a later part of a timeline, or a cut one)",
    )


def test_a_second_recording_in_the_same_file_continues_the_same_clock(tmp_path):
    again = {**META, "args": {"start_time_since_epoch_in_micros": EPOCH_US + 5_000_000}}
    events = [*EVENTS, again, named(1, "other"), *operation(1, 1000)]
    text = "[\n" + lines(events[: len(EVENTS)]) + "]\n[\n" + lines(events[len(EVENTS) :]) + "]"
    timeline = read_timeline(written(tmp_path, text))
    assert timeline.operations["tensor"].tolist() == ["dense/kernel", "other"]
    assert timeline.operations["end_ns"].tolist() == [1_170_000, 5_001_170_000]


def test_operations_without_an_end_are_kept_and_counted(tmp_path):
    events = [*EVENTS, begin(1, "NEGOTIATE_ALLGATHER", 3000), end(1, 3010)]
    events += [begin(1, "ALLGATHER", 3020)]
    timeline = read_timeline(written(tmp_path, lines(events)))
    last = timeline.operations.astype(object).iloc[1]
    assert (last["op"], last["start_ns"]) == ("allgather", 3_020_000)
    assert timeline.operations["end_ns"].isna().tolist() == [False, True]
    assert "1 of 2 operations have no end" in timeline.warnings


def test_memory_does_not_grow_with_the_length_of_the_file(tmp_path):
    path = tmp_path / "timeline.json"
    cycle = '{"ph": "i", "name": "CYCLE_START", "ts": 1, "s": "g"}'
    with path.open("w") as stream:  # on one line, as Horovod writes
        stream.write("[\n" + lines(EVENTS))
        for _ in range(60):
            stream.write("," + ",".join([cycle] * 1000))
    assert path.stat().st_size > 3_000_000
    tracemalloc.start()
    try:
        timeline = read_timeline(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    check_whole(timeline)
    assert peak < 2_500_000


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no\.json cannot be read"):
        read_timeline(tmp_path / "no.json")


def anchors(realtime_ns, monotonic_ns):
    return anchors_frame(
        {
            c.SEQ: [0],
            c.BEFORE_NS: [monotonic_ns - 10],
            c.AFTER_NS: [monotonic_ns + 10],
            c.REALTIME_NS: [realtime_ns],
        }
    )


def test_spans_are_placed_on_the_clock_of_the_node(tmp_path):
    timeline = read_timeline(
        written(tmp_path, lines([*EVENTS, begin(1, "NEGOTIATE_ALLREDUCE", 9)]))
    )
    # the timeline began when CLOCK_MONOTONIC was 7 s
    spans = to_spans(timeline, anchors(EPOCH_US * 1000 + 10**9, 8 * 10**9))
    shown = [c.START_NS, c.END_NS, c.KIND, c.NAME, c.OP, c.BYTES]
    began = 7 * 10**9
    rows = spans[shown].astype(object)
    assert rows.where(rows.notna(), None).to_numpy().tolist() == [
        [began + 1_000_000, began + 1_100_000, "host", "negotiate_allreduce", None, None],
        [began + 1_110_000, began + 1_170_000, "collective", "dense/kernel", "allreduce", 2560],
        [began + 1_120_000, began + 1_160_000, "host", "nccl_allreduce", None, None],
    ]
    assert spans[c.SOURCE].tolist() == ["horovod-timeline"] * 3


def test_a_timeline_that_cannot_be_placed_is_refused(tmp_path):
    placeable = read_timeline(written(tmp_path, lines(EVENTS)))
    with pytest.raises(InputError, match="not of the time at which the job ran"):
        to_spans(placeable, anchors(EPOCH_US * 1000 + 10**14, 10**9))
    with pytest.raises(InputError, match="no pair of clock readings"):
        to_spans(placeable, anchors(1, 1).iloc[:0])
    with pytest.raises(InputError, match="does not say when it began"):
        to_spans(read_timeline(written(tmp_path, lines(EVENTS[1:]))), anchors(1, 1))


def test_an_empty_timeline_gives_no_spans(tmp_path):
    timeline = read_timeline(written(tmp_path, lines([META])))
    assert len(to_spans(timeline, anchors(EPOCH_US * 1000, 1))) == 0


# as Horovod 0.28.1 with MPI wrote it: names line by line, all events on one line
REAL = (
    "[\n"
    '{"name": "process_name", "ph": "M", "pid": 0, '
    '"args": {"start_time_since_epoch_in_micros":1796084958707781}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n'
    '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "HorovodAllreduce"}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},\n'
    '{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1127124, "pid": 1},'
    '{"ph": "X", "name": "0", "ts": 1127125, "pid": 1, "dur": 0},'
    '{"ph": "X", "name": "1", "ts": 1670549, "pid": 1, "dur": 0},'
    '{"ph": "E", "ts": 1670551, "pid": 1},'
    '{"ph": "B", "name": "ALLREDUCE", "ts": 1670608, "pid": 1},'
    '{"ph": "B", "name": "MPI_ALLREDUCE", "ts": 1670614, "pid": 1},'
    '{"ph": "E", "ts": 1697824, "pid": 1},'
    '{"ph": "E", "ts": 1697864, "pid": 1, "args": {"dtype": "float32", "shape": "[1000, 10]"}}'
    "]"
)


def test_what_horovod_itself_wrote_is_read(tmp_path):
    timeline = read_timeline(written(tmp_path, REAL))
    assert timeline.warnings == ()
    (row,) = timeline.operations.astype(object).to_numpy().tolist()
    assert row[:3] == ["HorovodAllreduce", "allreduce", 40_000]  # 1000 x 10 float32
    assert row[3:] == [1_127_124_000, 1_670_551_000, 1_670_608_000, 1_697_864_000]
    assert timeline.pieces["name"].tolist() == ["mpi_allreduce"]
    assert timeline.ready_ns(0) == {0: 1_127_125_000, 1: 1_670_549_000}


@pytest.mark.parametrize(
    ("name", "started", "operations", "with_ticks"),
    [
        ("sagemaker_closed_json", None, 4, 4),
        ("sagemaker_rotated_1", 1_592_860_687_560_103_000, 0, 0),
        ("sagemaker_rotated_2", 1_592_860_687_560_103_000, 4, 4),
    ],
)
def test_real_files_of_others_are_read(test_data, name, started, operations, with_ticks):
    timeline = read_timeline(test_data / "horovod" / f"{name}.json")
    assert timeline.start_time_since_epoch == started
    assert (len(timeline.operations), timeline.with_ticks) == (operations, with_ticks)
    assert set(timeline.ticks["rank"]) <= {4, 5, 7}


def test_phases_are_medians_over_the_allreduces_that_ended():
    rows = pd.DataFrame(
        {
            "op": ["allreduce", "allreduce", "allreduce", "broadcast", "allreduce"],
            "negotiate_start_ns": [0, 100, 200, 0, 300],
            "negotiate_end_ns": [10, 130, 250, 900, 350],
            "start_ns": [10, 130, 250, 900, None],
            "end_ns": [15, 138, 257, 999, None],
        }
    )
    assert horovod_phases(rows, with_ticks=2) == HorovodPhases(3, 2, 30.0, 7.0)
    nothing = horovod_phases(rows.iloc[:0], with_ticks=0)
    assert (nothing.allreduces, np.isnan(nothing.negotiate_ns)) == (0, True)
