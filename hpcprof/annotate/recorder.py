"""Writes ``spans.bin``: packs records in memory and appends them once per step.

Does not know what a training is. One process owns the file: it is created exclusively, and a
forked child must not use the object (session.py sees to that).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
from collections import deque
from pathlib import Path
from typing import Callable

from hpcprof.artifacts import node_time, span_format

# records kept in memory when nobody ends a step; 40 bytes each
_FLUSH_RECORDS = 4096

_pack = span_format.RECORD.pack
_ident = threading.get_ident


class SpanRecorder:
    """Appends span records to ``path``; times are CLOCK_MONOTONIC ns of this node.

    May be called from a signal handler, which Python runs in the main thread between any two
    instructions: its locks let the thread that holds them in again, and a call in the middle of a
    write leaves the writing to the call that it interrupted.

    A deque and not one byte buffer: appending to it is atomic, so data-loading threads need no
    lock. ``on_failure`` is told in words, once each, when the file can no longer be written (from
    then on the recorder is silent) and when a record cannot be packed (it alone is left out).
    """

    def __init__(self, path: Path, rank: int, on_failure: Callable[[str], None]) -> None:
        """Create the file. Raises OSError, also when another process already owns it."""
        self._pending: deque[bytes] = deque()
        self._name_ids: dict[str, int] = {}
        self._native_ids: dict[int, int] = {}
        self._new_ids = itertools.count(1)
        self._name_lock = threading.RLock()
        self._write_lock = threading.RLock()
        self._is_writing = False
        self._must_write = False
        self._is_closing = False
        self._unwritten = memoryview(b"")
        self._on_failure = on_failure
        self._has_left_out = False
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._pending.append(
            span_format.HEADER.pack(
                span_format.MAGIC,
                span_format.VERSION,
                rank,
                os.getpid(),
                node_time.realtime_ns(),
                node_time.monotonic_ns(),
            )
        )
        self.flush()

    def add(
        self, start_ns: int, end_ns: int, name: str, step: int, flags: int, value: int = 0
    ) -> None:
        """Keep one record for the next flush. ``flags`` is a kind, see span_format.

        Raises nothing, whatever the training passes.
        """
        try:
            name_id = self._name_ids.get(name)
            if name_id is None:
                name_id = self._declare(name)
            ident = _ident()
            thread = self._native_ids.get(ident)
            if thread is None:
                # an ident may come again after its thread has ended; the lane is then named wrong
                thread = self._native_ids[ident] = threading.get_native_id()
            try:
                record = _pack(start_ns, end_ns, name_id, step, thread, flags, value)
            except struct.error:  # a float, or what no record can hold
                start_ns, end_ns, value = map(round, (start_ns, end_ns, value))
                record = _pack(start_ns, end_ns, name_id, step, thread, flags, value)
        except Exception as error:
            if not self._has_left_out:
                self._has_left_out = True
                self._on_failure(f"a record was left out: {name} of step {step}: {error}")
            return
        pending = self._pending
        pending.append(record)
        if len(pending) >= _FLUSH_RECORDS:
            self.flush()

    def _declare(self, name: str) -> int:
        # a file's name may hold bytes that are no text
        text = str(name).encode("utf-8", "backslashreplace").decode()
        with self._name_lock:
            name_id = self._name_ids.get(name)
            if name_id is None:
                name_id = next(self._new_ids)
                self._pending.append(span_format.name_blocks(name_id, text))
                self._name_ids[name] = name_id
        return name_id

    def flush(self) -> None:
        """Append everything kept so far with one write. Raises only what a signal handler does."""
        if self._fd < 0:  # also in a forked child, where nobody would let go of the lock
            self._pending.clear()
            return
        with self._write_lock:
            self._must_write = True
            while self._must_write and not self._is_writing:
                self._must_write = False
                self._is_writing = True
                try:
                    self._write_pending()
                finally:
                    self._is_writing = False
            if self._is_closing and not self._is_writing:
                self.abandon()

    def _write_pending(self) -> None:
        self._write()  # what is left of a write that KeyboardInterrupt ended
        pending = self._pending
        # popleft and not a swap of deques: a thread may be appending just now
        self._unwritten = memoryview(b"".join([pending.popleft() for _ in range(len(pending))]))
        self._write()

    def _write(self) -> None:
        try:
            while self._unwritten and self._fd >= 0:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except OSError as error:
            self.abandon()
            self._on_failure(f"recording of spans stopped: {error.strerror} ({self._path})")

    def abandon(self) -> None:
        """Give up the file without writing what is pending (failure, or a forked child)."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # a failing close can not be mended, and the training must not notice
            with contextlib.suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._is_closing = True
        self.flush()


def owner_of(path: Path) -> int | None:
    """The process whose records these are, None when the file does not tell."""
    try:
        with open(path, "rb") as stream:
            header = span_format.HEADER.unpack(stream.read(span_format.HEADER.size))
    except (OSError, struct.error):
        return None
    magic, _, _, pid, _, _ = header
    return int(pid) if magic == span_format.MAGIC else None
