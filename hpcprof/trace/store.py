"""``TraceStore``: the traces of a run as Parquet, one folder per rank. Knows no format but its own.

``rank=00013/rank.json`` is written last and removed first: a folder without it was being written
when collect died, and counts as absent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hpcprof.artifacts.atomic import read_json, write_json
from hpcprof.errors import InputError
from hpcprof.trace.check import check_spans
from hpcprof.trace.columns import COUNTER_COLUMNS, KIND, PHASE, SPAN_COLUMNS, Column
from hpcprof.trace.frame import from_arrow, to_arrow
from hpcprof.trace.model import Gpu, Hang, Moment, RankInfo, SourceState, Trace, Training

SCHEMA = 1
# small enough that a few steps of one kind can be read without the rest, large enough for Parquet
ROW_GROUP_ROWS = 128 * 1024
_FOLDER_RE = re.compile(r"\Arank=([0-9]{5,})\Z")


class TraceStore:
    """The store of one run. Times are int64 ns on the job's clock (aligned before writing)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, trace: Trace) -> None:
        """Write one rank, replacing what was there. Raises ValueError (table), OSError (disk)."""
        check_spans(trace.spans)
        folder = self._folder(trace.rank.rank)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank.json").unlink(missing_ok=True)
        _write_parquet(folder / "spans.parquet", to_arrow(trace.spans, SPAN_COLUMNS))
        _write_parquet(folder / "counters.parquet", to_arrow(trace.counters, COUNTER_COLUMNS))
        write_json(folder / "rank.json", {"schema": SCHEMA, **asdict(trace.rank)})

    def ranks(self) -> list[int]:
        """Ranks that were written completely, ascending; no store gives []."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        found = (_FOLDER_RE.match(name) for name in names)
        ranks = sorted(int(match.group(1)) for match in found if match)
        return [rank for rank in ranks if (self._folder(rank) / "rank.json").exists()]

    def rank_info(self, rank: int) -> RankInfo:
        """Who the rank was. Raises InputError when it is absent or of another version."""
        what = f"rank {rank} of the store"
        record = read_json(self._folder(rank) / "rank.json", what)
        if record.pop("schema", None) != SCHEMA:
            raise InputError(
                f"{what} was written by another version of hpcprof: {self._folder(rank)}. "
                "Run collect again; it replaces the store."
            )
        return _rank_info(record)

    def read_spans(
        self,
        rank: int,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        phases: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Spans of one rank, sorted by start. None means all columns, all kinds, all phases.

        With ``phases`` those without a phase are left out. Raises InputError when the rank is
        absent or its file cannot be read.
        """
        chosen = ((KIND, kinds), (PHASE, phases))
        filters = [(name, "in", list(values)) for name, values in chosen if values is not None]
        return self._read(rank, "spans.parquet", SPAN_COLUMNS, columns, filters or None)

    def read(self, rank: int) -> Trace:
        """Everything of one rank. Raises InputError like ``read_spans``."""
        return Trace(self.rank_info(rank), self.read_spans(rank), self.read_counters(rank))

    def read_counters(self, rank: int) -> pd.DataFrame:
        """Counters of one rank, possibly without rows. Raises InputError like ``read_spans``."""
        return self._read(rank, "counters.parquet", COUNTER_COLUMNS, None, None)

    def _folder(self, rank: int) -> Path:
        return self.path / f"rank={rank:05d}"

    def _read(
        self,
        rank: int,
        name: str,
        declared: tuple[Column, ...],
        columns: Sequence[str] | None,
        filters: list[tuple[str, str, list[str]]] | None,
    ) -> pd.DataFrame:
        self.rank_info(rank)  # absent or of another version: say so instead of a Parquet error
        wanted = None if columns is None else list(columns)
        path = self._folder(rank) / name
        try:
            # partitioning=None: the folder name would become a column "rank"
            table = pq.read_table(path, columns=wanted, filters=filters, partitioning=None)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(
                f"rank {rank}: the store cannot be read: {path} ({error}). Run collect again."
            ) from None
        return from_arrow(table, declared)


def _write_parquet(path: Path, table: pa.Table) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, temporary, row_group_size=ROW_GROUP_ROWS, compression="zstd")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _rank_info(record: dict[str, Any]) -> RankInfo:
    for key in ("started", "ended"):
        record[key] = None if record[key] is None else Moment(*record[key])
    record["sources"] = {
        name: SourceState(**{**state, "warnings": tuple(state["warnings"])})
        for name, state in record["sources"].items()
    }
    record["warnings"] = tuple(record["warnings"])
    gpus = record.get("gpus")  # stores of earlier versions have none of these
    record["gpus"] = None if gpus is None else tuple(Gpu(*gpu) for gpu in gpus)
    record["hangs"] = tuple(Hang(*hang) for hang in record.get("hangs", ()))
    training = record.get("training")
    record["training"] = None if training is None else _training(training)
    return RankInfo(**record)


def _training(record: dict[str, Any]) -> Training:
    """JSON knows no tuples; what Horovod told stays as it was read from JSON."""
    known = {field.name for field in fields(Training)}
    return Training(
        **{
            name: value if name == "horovod" else _with_tuples(value)
            for name, value in record.items()
            if name in known
        }
    )


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(each) for each in value)
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return value
