"""Opens an Nsight Systems SQLite export and fetches columns in bulk. Does not know what rows mean.

Nothing here asks for a version: tables are found by name, with or without ``_V2``, ``_V3``; a table
that saw no event is absent from the file (so absent means zero, not failure); a column that this
version does not have is all null.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hpcprof.errors import InputError

NULL = int(np.iinfo(np.int64).min)  # stands for SQL NULL in integer columns
Ints = np.ndarray[Any, np.dtype[np.int64]]
_SQL_NULL = f"({NULL + 1} - 1)"  # SQLite reads the number itself as a float
_ROWS_AT_ONCE = 100_000  # one chunk of Python objects is alive at a time
_VERSION_SUFFIX_RE = re.compile(r"_V[0-9]+\Z")


def process_of(global_id: Ints) -> Ints:
    """Process id out of nsys's globalTid or globalPid (bits 24 to 47)."""
    return (global_id >> 24) & 0xFFFFFF


def thread_of(global_tid: Ints) -> Ints:
    """Thread id out of nsys's globalTid (lowest 24 bits)."""
    return global_tid & 0xFFFFFF


class NsysDatabase:
    """One export, read only. Made by ``open_database``."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self._tables = self._find_tables()
        self._columns: dict[str, frozenset[str]] = {}
        self._strings: dict[int, str] | None = None

    def has(self, table: str) -> bool:
        """Whether the file has the table, under any of its versioned names."""
        return table in self._tables

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a table; none when the table is absent."""
        if table not in self._columns:
            rows = self._query(f'PRAGMA table_info("{self._tables.get(table, "")}")')
            self._columns[table] = frozenset(row[1] for row in rows)
        return self._columns[table]

    def ints(self, table: str, wanted: Sequence[str]) -> dict[str, Ints]:
        """Integer columns in file order; NULL for null and for columns that are not there.

        Raises InputError when the file is damaged.
        """
        known = self.columns(table)
        chunks: list[Ints] = []
        if self.has(table):
            values = [f'IFNULL("{n}", {_SQL_NULL})' if n in known else _SQL_NULL for n in wanted]
            sql = f'SELECT {", ".join(values)} FROM "{self._tables[table]}"'
            chunks = [self._integers(rows, table) for rows in self._chunks(sql)]
        rows_of = np.concatenate(chunks) if chunks else np.empty((0, len(wanted)), dtype=np.int64)
        return {name: rows_of[:, index] for index, name in enumerate(wanted)}

    def labels(self, table: str, *columns: str) -> tuple[Ints, list[str | None]]:
        """Text of each row as codes into a list of texts; -1 where there is none.

        The first of ``columns`` that is not null counts; numbers in it are ids of StringIds. One
        file may hold both forms.
        """
        known = [f'"{name}"' for name in columns if name in self.columns(table)]
        codes: list[Ints] = []
        ids: dict[Any, int] = {}
        if known:
            value = known[0] if len(known) == 1 else f"COALESCE({', '.join(known)})"
            for rows in self._chunks(f'SELECT {value} FROM "{self._tables[table]}"'):
                found = (-1 if key is None else ids.setdefault(key, len(ids)) for (key,) in rows)
                codes.append(np.fromiter(found, dtype=np.int64, count=len(rows)))
        strings = self.strings() if ids else {}
        texts = [strings.get(key) if isinstance(key, int) else str(key) for key in ids]
        return (np.concatenate(codes) if codes else np.empty(0, dtype=np.int64)), texts

    def rows_by_process(self, table: str, column: str) -> dict[int, int]:
        """How many rows each process has; ``column`` is globalTid or globalPid."""
        if column not in self.columns(table):
            return {}
        rows = self._query(
            f'SELECT ("{column}" >> 24) & 16777215, COUNT(*) FROM "{self._tables[table]}" '
            f'WHERE "{column}" IS NOT NULL GROUP BY 1'
        )
        return {int(pid): int(count) for pid, count in rows}

    def strings(self) -> dict[int, str]:
        """StringIds: text by id."""
        if self._strings is None:
            self._strings = {}
            if self.has("StringIds"):
                rows = self._query(f'SELECT id, value FROM "{self._tables["StringIds"]}"')
                self._strings = {int(key): str(value) for key, value in rows}
        return self._strings

    def single(self, table: str, column: str) -> int | None:
        """First integer of a column, or None."""
        values = self.ints(table, [column])[column]
        values = values[values != NULL]
        return int(values[0]) if len(values) else None

    def _find_tables(self) -> dict[str, str]:
        found: dict[str, str] = {}
        rows = self._query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        for (name,) in rows:
            # X < X_V2 < X_V3: the newest form of a table is the one that is filled
            found[_VERSION_SUFFIX_RE.sub("", name)] = name
        return found

    def _integers(self, rows: list[tuple[Any, ...]], table: str) -> Ints:
        try:
            return np.array(rows, dtype=np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{self.path}: table {table} does not hold integers where they belong ({error})"
            ) from None

    def _chunks(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield rows
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise _damaged(self.path, error) from None

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _damaged(self.path, error) from None


@contextmanager
def open_database(path: Path) -> Iterator[NsysDatabase]:
    """The export at ``path``. Raises InputError when it is missing or not an SQLite file."""
    if not path.is_file():
        raise InputError(f"{path} is missing")
    # immutable: archived runs are read-only, and SQLite would want to write a lock beside the file
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
    except sqlite3.Error as error:
        raise _damaged(path, error) from None
    # names come from the traced program and need not be UTF-8
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield NsysDatabase(connection, path)
    finally:
        connection.close()


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not a complete SQLite export of nsys ({error}). Export it again.")
