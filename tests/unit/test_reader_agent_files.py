"""The node agent's files: what is read, and what becomes of damaged, cut off and foreign ones."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.readers.agent_files import read_exchanges, read_links, read_samples

pytestmark = pytest.mark.unit

NODE = "gpu-2"
AGENT = {
    **{"kind": "agent", "schema": 1, "node": NODE, "reference": "gpu-1", "transport": "mpi"},
    **{"pid": 77, "monotonic_ns": 5_000, "realtime_ns": 1_700_000_000_000_000_000},
}
SAMPLE = {
    **{"kind": "sample", "monotonic_ns": 10_000},
    "counters": {"cpu_busy_frac": 0.25, "memory_used_bytes": 7_000},
    "ranks": {"3": {"rchar_bytes": 512}, "12": {"threads": 9}},
}


def exchange(burst: int, sent: int, arrived: int, answered: int, received: int) -> dict[str, Any]:
    return {
        **{"kind": "exchange", "burst": burst, "sent_ns": sent, "arrived_ns": arrived},
        **{"answered_ns": answered, "received_ns": received},
    }


def wall(before: int, realtime: int, after: int) -> dict[str, Any]:
    return {"kind": "wall", "before_ns": before, "realtime_ns": realtime, "after_ns": after}


def link(peer: str, nbytes: int, start: int, duration: int, round_trip: int) -> dict[str, Any]:
    return {
        **{"kind": "link", "peer": peer, "bytes": nbytes, "start_ns": start},
        **{"duration_ns": duration, "round_trip_ns": round_trip, "transport": "tcp"},
    }


def lines(*records: Any) -> bytes:
    """Records as JSON lines; bytes are written as they are."""
    return b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records)


def run_with(folder: Path, file: str, content: bytes) -> ArtifactPaths:
    paths = ArtifactPaths(folder)
    paths.node_folder(NODE).mkdir(parents=True, exist_ok=True)
    (paths.node_folder(NODE) / file).write_bytes(content)
    return paths


def test_clock_readings_are_read_as_written(tmp_path: Path) -> None:
    content = lines(
        AGENT,
        wall(90, 1_700_000_000_000_000_001, 95),
        exchange(0, 100, 9_000_000, 9_000_010, 180),
        exchange(1, 300, 9_000_200, 9_000_205, 350),
        {"kind": "note", "text": "MPI was slow"},
        {"kind": "end", "reason": "asked to", "monotonic_ns": 400},
    )
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert (got.node, got.reference, got.transport) == (NODE, "gpu-1", "mpi")
    assert (got.notes, got.ended, got.warnings) == (("MPI was slow",), True, ())
    columns = ["burst", "sent_ns", "arrived_ns", "answered_ns", "received_ns"]
    assert list(got.exchanges.columns) == columns
    assert [str(dtype) for dtype in got.exchanges.dtypes] == ["int64"] * 5
    assert got.exchanges.to_numpy().tolist() == [
        [0, 100, 9_000_000, 9_000_010, 180],
        [1, 300, 9_000_200, 9_000_205, 350],
    ]
    walls = got.walls[["seq", "before_ns", "realtime_ns", "after_ns"]].to_numpy().tolist()
    assert walls == [[0, 90, 1_700_000_000_000_000_001, 95]]


@pytest.mark.parametrize(
    "senseless",
    [
        exchange(0, 200, 1_000, 1_010, 190),  # received before it was sent
        exchange(0, 100, 1_010, 1_000, 200),  # answered before it arrived
        exchange(0, 100, 1_000, 1_200, 200),  # longer with the other than away from here
        exchange(-1, 100, 1_000, 1_010, 200),
    ],
)
def test_pings_that_make_no_sense_are_left_out_and_told(tmp_path: Path, senseless: Any) -> None:
    content = lines(AGENT, senseless, exchange(0, 300, 1_300, 1_310, 350))
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert got.exchanges["sent_ns"].tolist() == [300]
    assert len(got.warnings) == 1
    assert got.warnings[0].startswith(f"node {NODE}: 1 pings make no sense")


def test_a_ping_that_takes_no_time_is_kept(tmp_path: Path) -> None:
    content = lines(AGENT, exchange(0, 100, 1_000, 1_000, 100))
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert len(got.exchanges) == 1


@pytest.mark.parametrize(
    "damage",
    [
        b"not json\n",
        b"\x00\x00\x00\xff\n",
        b"[1, 2]\n",
        b"7\n",
        b"[" * 100_000 + b"\n",
        lines({"kind": "exchange", "burst": 0}),
        lines(exchange(0, 1, 2, 3, 4) | {"sent_ns": "1"}),
        lines(exchange(0, 1, 2, 3, 4) | {"sent_ns": 1.5}),
        lines(exchange(0, 1, 2, 3, 4) | {"sent_ns": True}),
        lines(exchange(0, 1, 2, 3, 10**30)),
        lines({"kind": "wall", "before_ns": 1}),
        lines(wall(100, 5, 90)),
    ],
)
def test_a_damaged_line_costs_only_itself(tmp_path: Path, damage: bytes) -> None:
    good = exchange(0, 300, 1_300, 1_310, 350)
    content = lines(AGENT, good, damage, good, wall(1, 2, 3))
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert got.exchanges["sent_ns"].tolist() == [300, 300]
    assert len(got.walls) == 1
    expected = f"node {NODE}: clock.jsonl: 1 lines are damaged and were left out"
    assert got.warnings == (expected,)


def test_records_of_a_later_kind_and_blank_lines_are_no_damage(tmp_path: Path) -> None:
    content = lines(AGENT, {"kind": "aurora", "hue": 3}, b"\n", {"no": "kind"})
    assert read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE).warnings == ()


@pytest.mark.parametrize("file", ["clock.jsonl", "samples.jsonl", "links.jsonl"])
def test_a_file_of_another_schema_is_refused_by_name(tmp_path: Path, file: str) -> None:
    paths = run_with(tmp_path, file, lines(AGENT | {"schema": 99}))
    read = {"c": read_exchanges, "s": read_samples, "l": read_links}[file[0]]
    with pytest.raises(InputError, match=rf"gpu-2: .*{file} has schema 99.*reads 1\. Run collect"):
        read(paths, NODE)


def test_a_file_of_another_node_is_refused(tmp_path: Path) -> None:
    paths = run_with(tmp_path, "clock.jsonl", lines(AGENT | {"node": "gpu-9"}))
    with pytest.raises(InputError, match=r"node gpu-2: .* was written by node gpu-9"):
        read_exchanges(paths, NODE)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    paths.node_clock(NODE).mkdir(parents=True)
    with pytest.raises(InputError, match=r"node gpu-2: .*clock\.jsonl cannot be read"):
        read_exchanges(paths, NODE)


def test_a_node_without_an_agent_gives_empty_tables_and_says_so(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    clock, links, samples = (r(paths, NODE) for r in (read_exchanges, read_links, read_samples))
    assert (len(clock.exchanges), len(clock.walls), len(links), len(samples)) == (0, 0, 0, 0)
    assert (clock.reference, clock.transport, clock.ended) == (None, None, False)
    told = (*clock.warnings, *links.attrs["warnings"], *samples.attrs["warnings"])
    names = ("clock.jsonl", "links.jsonl", "samples.jsonl")
    assert [text.split(" (")[0] for text in told] == [f"node {NODE}: {n} is missing" for n in names]


def test_empty_tables_have_the_columns_and_types_of_full_ones(tmp_path: Path) -> None:
    empty = ArtifactPaths(tmp_path / "empty")
    run_with(tmp_path, "links.jsonl", lines(link("gpu-1", 1, 2, 3, 4)))
    full = run_with(tmp_path, "samples.jsonl", lines(SAMPLE))
    for read in (read_links, read_samples):
        assert list(read(empty, NODE).columns) == list(read(full, NODE).columns)
    kinds = [str(dtype) for dtype in read_samples(empty, NODE).dtypes]
    assert kinds == ["int64", "Int16", "category", "float64"]
    numbers = read_links(empty, NODE)[["bytes", "start_ns", "duration_ns", "round_trip_ns"]]
    assert [str(dtype) for dtype in numbers.dtypes] == ["int64"] * 4


def test_pings_without_a_known_reference_are_not_used(tmp_path: Path) -> None:
    content = lines(b'{"kind": "agent", "sche\n', exchange(0, 1, 2, 3, 4), wall(1, 2, 3))
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert (got.reference, len(got.exchanges), len(got.walls)) == (None, 0, 1)
    assert any("1 pings were left out: it is not known which node" in w for w in got.warnings)


def test_an_agent_started_again_gets_bursts_of_its_own(tmp_path: Path) -> None:
    content = lines(
        *(AGENT, exchange(0, 10, 1, 1, 20), exchange(4, 30, 1, 1, 40), {"kind": "end"}),
        *(AGENT, exchange(0, 50, 1, 1, 60)),
        *(AGENT | {"reference": "gpu-7"}, exchange(0, 70, 1, 1, 80)),
    )
    got = read_exchanges(run_with(tmp_path, "clock.jsonl", content), NODE)
    assert got.exchanges[["burst", "sent_ns"]].to_numpy().tolist() == [[0, 10], [4, 30], [5, 50]]
    assert (got.reference, got.ended) == ("gpu-1", False)
    assert len(got.warnings) == 1
    assert got.warnings[0].startswith(f"node {NODE}: 1 pings were left out")


def test_links_are_read_as_written_and_negative_ones_left_out(tmp_path: Path) -> None:
    content = lines(
        link("gpu-1", 1_048_576, 10, 900_000, 40_000),
        link("gpu-3", 0, 20, 41_000, 40_000),
        link("gpu-1", 5, 10, -1, 40_000),
        link("gpu-1", 5, 10, 100, 40_000) | {"peer": None},
    )
    got = read_links(run_with(tmp_path, "links.jsonl", content), NODE)
    assert got.to_dict("records") == [
        {
            **{"node": NODE, "peer": peer, "bytes": nbytes, "start_ns": start},
            **{"duration_ns": duration, "round_trip_ns": 40_000, "transport": "tcp"},
        }
        for peer, nbytes, start, duration in [
            ("gpu-1", 1_048_576, 10, 900_000),
            ("gpu-3", 0, 20, 41_000),
        ]
    ]
    expected = f"node {NODE}: links.jsonl: 2 lines are damaged and were left out"
    assert got.attrs["warnings"] == (expected,)


def test_samples_become_one_row_per_counter(tmp_path: Path) -> None:
    second = {"kind": "sample", "monotonic_ns": 20_000, "counters": {"cpu_busy_frac": 1}}
    got = read_samples(run_with(tmp_path, "samples.jsonl", lines(SAMPLE, second)), NODE)
    rows = got.astype(object).where(got.notna(), None).to_numpy().tolist()
    assert rows == [
        [10_000, None, "cpu_busy_frac", 0.25],
        [10_000, None, "memory_used_bytes", 7_000.0],
        [10_000, 3, "rchar_bytes", 512.0],
        [10_000, 12, "threads", 9.0],
        [20_000, None, "cpu_busy_frac", 1.0],
    ]
    assert got.attrs["warnings"] == ()


def test_values_that_are_no_numbers_are_left_out_and_counted(tmp_path: Path) -> None:
    odd = b'{"kind":"sample","monotonic_ns":5,"counters":{"a":NaN,"b":1e999,"c":null,"d":true,'
    odd += b'"e":' + b"9" * 400 + b',"\\ud800x":2},"ranks":{"one":{"a":1},"70000":{"a":1},"4":7}}\n'
    got = read_samples(run_with(tmp_path, "samples.jsonl", odd), NODE)
    assert got[["name", "value"]].astype(object).to_numpy().tolist() == [["?x", 2.0]]
    expected = f"node {NODE}: samples.jsonl: 8 values are no numbers and were left out"
    assert got.attrs["warnings"] == (expected,)


@pytest.mark.parametrize(
    "damage", [{"monotonic_ns": None}, {"counters": 3}, {"ranks": ["3"]}, {"monotonic_ns": 1.0}]
)
def test_a_sample_without_its_fields_is_damage(tmp_path: Path, damage: dict[str, Any]) -> None:
    got = read_samples(run_with(tmp_path, "samples.jsonl", lines(SAMPLE | damage, SAMPLE)), NODE)
    assert len(got) == 4
    assert got.attrs["warnings"][0].endswith("1 lines are damaged and were left out")


CLOCK_CONTENT = lines(
    AGENT,
    *(
        record
        for burst in range(4)
        for record in (
            wall(burst * 100, 1_700_000_000_000_000_000 + burst, burst * 100 + 1),
            exchange(burst, burst * 100 + 2, 7, 8, burst * 100 + 50),
        )
    ),
)


@settings(deadline=None, max_examples=40)
@given(length=st.integers(0, len(CLOCK_CONTENT)))
def test_a_file_cut_off_anywhere_keeps_the_whole_lines(length: int) -> None:
    content = CLOCK_CONTENT[:length]
    whole = content.count(b"\n")
    is_complete = length < len(CLOCK_CONTENT) and CLOCK_CONTENT[length : length + 1] == b"\n"
    whole += is_complete  # only the line's end is missing
    is_torn = not is_complete and not content.endswith(b"\n") and length > 0
    with tempfile.TemporaryDirectory() as folder:
        got = read_exchanges(run_with(Path(folder), "clock.jsonl", content), NODE)
    assert len(got.walls) == whole // 2
    assert got.exchanges["sent_ns"].tolist() == [2 + 100 * n for n in range(max(0, whole - 1) // 2)]
    assert got.reference == ("gpu-1" if whole else None)
    assert bool(got.warnings) == is_torn


@settings(deadline=None, max_examples=40)
@given(
    content=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([AGENT, SAMPLE, exchange(0, 1, 2, 3, 4), wall(1, 2, 3)]).map(lines),
            st.dictionaries(
                st.sampled_from(["kind", "monotonic_ns", "counters", "ranks", "peer", "bytes"]),
                st.one_of(
                    st.sampled_from(["sample", "link", "exchange", "note"]),
                    st.none(),
                    st.integers(),
                    st.floats(),
                    st.dictionaries(st.text(), st.integers() | st.floats() | st.text()),
                ),
            ).map(lines),
        )
    ).map(b"".join)
)
def test_whatever_a_file_holds_is_read_without_a_traceback(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file, read in [("clock", read_exchanges), ("links", read_links)]:
            read(run_with(Path(folder), f"{file}.jsonl", content), NODE)
        samples = read_samples(run_with(Path(folder), "samples.jsonl", content), NODE)
    assert isinstance(samples, pd.DataFrame)
    assert samples["value"].notna().all()
