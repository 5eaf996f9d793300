"""A file of JSON lines that grows, within a limit, and whose failures cost only itself."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Callable, Mapping

from hpcprof.artifacts import node_records

LIMIT_BYTES = 16 * 1024 * 1024
# kept free below the limit for what must still be said when the rest is full
_RESERVE_BYTES = 4096
_LAST_WORDS = (node_records.NOTE, node_records.END)


class RecordFile:
    """Appends records, one ``write`` each, so that a reader or a crash meets whole lines only.

    ``on_stop`` is called once, with the reason in words, when the file takes no more records: it
    could not be opened or written, or is full. Nothing is ever raised. Safe to use by threads.
    """

    def __init__(
        self, path: Path, on_stop: Callable[[str], None], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._path = path
        self._on_stop = on_stop
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._full = False
        self._descriptor: int | None = None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
            self._bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            self._stop(f"{path.name} cannot be written: {error.strerror}")

    @property
    def is_open(self) -> bool:
        """Whether the file could be opened and no write has failed so far."""
        return self._descriptor is not None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record, unless the file has stopped."""
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        with self._lock:
            problem = self._append(line, is_last_word=record.get("kind") in _LAST_WORDS)
        if problem:  # outside of the lock: the reason may be written into this very file
            self._on_stop(problem)

    def _append(self, line: bytes, *, is_last_word: bool) -> str:
        """Write the line; returns why the file stopped just now, "" when it did not."""
        if self._descriptor is None:
            return ""
        room = self._limit if is_last_word else self._limit - _RESERVE_BYTES
        if self._bytes + len(line) > room:
            was_full, self._full = self._full, True
            return "" if was_full else f"{self._path.name} is full at {self._bytes} bytes"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._close()
            return f"{self._path.name} cannot be written: {error.strerror}"
        self._bytes += written
        if written < len(line):  # half a line, as a full disk leaves it, must stay the last one
            self._close()
            return f"{self._path.name} cannot be written: only part of a line was taken"
        return ""

    def _stop(self, problem: str) -> None:
        self._close()
        self._on_stop(problem)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
