"""How fast this node reads from the data set: now and then one small read, with its times.

Must load nothing and hang nothing: one file in ten seconds, at most 64 KiB of it, in a thread that
nobody waits for. What is dropped from the page cache is only what is about to be read: dropping a
whole file would cost the training the cache of its own data.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Iterator

from hpcprof.artifacts import node_time

INTERVAL_NS = 10_000_000_000
READ_BYTES = 64 * 1024
SCAN_FILES = 1000
_SCAN_SECONDS = 0.05
# so that a read of a healthy file system is told with the sample in which it was made
_WAIT_SECONDS = 0.05
# a training may make its data set at its start
_EMPTY_SCANS_TO_COMPLAIN = 6
_SCAN_DEPTH = 8  # a link to a folder above is followed no further


class Canary:
    """Test reads of files below ``data_dir``; None: there are none.

    ``problem`` says in words why there are no numbers, "" while there is no reason to complain.
    """

    def __init__(self, data_dir: str | None, interval_ns: int = INTERVAL_NS) -> None:
        self.problem = ""
        self._data_dir = data_dir
        self._interval_ns = interval_ns
        self._next_ns = 0
        self._files: list[str] = []
        self._failures = 0
        self._empty_scans = 0
        self._running: _Read | None = None

    def look(self) -> dict[str, int]:
        """The times of a read that came back since the last look, each read once, else {}.

        Names as in artifacts.node_records.COUNTERS. Begins the next read when it is time and waits
        for it, but at most 50 ms. One that has not come back by a later look gives
        ``canary_pending_ns``, its age; no second one is begun beside it.
        """
        if not self._data_dir:
            return {}
        now = node_time.monotonic_ns()
        if self._running is not None:
            if self._running.is_alive():
                return {"canary_pending_ns": now - self._running.began_ns}
            return self._collect(self._running)
        if now >= self._next_ns:
            self._next_ns = now + self._interval_ns
            return self._begin(self._data_dir, now)
        return {}

    def _begin(self, data_dir: str, now: int) -> dict[str, int]:
        reading = _Read(data_dir, self._files, now)
        try:
            reading.start()
        except RuntimeError as error:  # no more threads allowed here
            self.problem = f"no test reads of {data_dir}: {error}"
            return {}
        self._running = reading
        reading.join(_WAIT_SECONDS)
        return {} if reading.is_alive() else self._collect(reading)

    def _collect(self, done: _Read) -> dict[str, int]:
        self._running = None
        self._files = done.files
        self._empty_scans = 0 if done.files or done.failed else self._empty_scans + 1
        is_early = 0 < self._empty_scans < _EMPTY_SCANS_TO_COMPLAIN
        self.problem = "" if is_early else done.problem
        counters = dict(done.counters)
        if done.failed:
            self._failures += 1
        if self._failures:
            counters["canary_errors"] = self._failures
        return counters


class _Read(threading.Thread):
    """One read. What it found may be looked at once it is no longer alive."""

    def __init__(self, data_dir: str, files: list[str], began_ns: int) -> None:
        super().__init__(name="hpcprof canary", daemon=True)
        self.began_ns = began_ns
        self.files = files
        self.counters: dict[str, int] = {}
        self.problem = ""
        self.failed = False
        self._data_dir = data_dir

    def run(self) -> None:
        """Find files when none is known, and read of one of them."""
        try:
            if not self.files:
                self.files = first_files(self._data_dir)
            if not self.files:
                self.problem = f"no test reads: no file was found in {self._data_dir}"
                return
            self.counters = timed_read(random.choice(self.files))
        except OSError as error:
            self.failed = True
            self.files = []  # it may have been removed: look again
            self.problem = f"a test read failed: {error}"


def timed_read(path: str) -> dict[str, int]:
    """Read at most 64 KiB at a random place of the file; times in ns. Raises OSError.

    An empty file gives no ``canary_read_*``.
    """
    clock = node_time.monotonic_ns
    began = clock()
    size = os.stat(path).st_size
    known = clock()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        opened = clock()
        # random: the start of a few large files would soon be in every server's memory
        offset = random.randrange(max(1, size - READ_BYTES + 1)) // READ_BYTES * READ_BYTES
        os.posix_fadvise(descriptor, offset, READ_BYTES, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        before = clock()
        content = os.pread(descriptor, READ_BYTES, offset)
        after = clock()
    finally:
        os.close(descriptor)
    counters = {"canary_stat_ns": known - began, "canary_open_ns": opened - known}
    if content:
        counters.update(canary_read_ns=after - before, canary_read_bytes=len(content))
    return counters


def first_files(folder: str, seconds: float = _SCAN_SECONDS) -> list[str]:
    """Some files below ``folder``: at most ``SCAN_FILES``, or what is found in ``seconds``.

    Raises OSError when the folder cannot be read; what cannot be read below it is passed over.
    The order of folders is random, so that not all nodes meet in the same one.
    """
    deadline = time.monotonic() + seconds
    found: list[str] = []
    for path in _files_below(folder, _SCAN_DEPTH):
        if path is not None:
            found.append(path)
        if len(found) >= SCAN_FILES or time.monotonic() > deadline:
            break
    return found


def _files_below(folder: str, depth: int) -> Iterator[str | None]:
    """Files of the folder, then those of its folders; None for what is no file (time passes)."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_file, is_folder = entry.is_file(), entry.is_dir()
            except OSError:
                continue  # a link to where we may not look
            if is_folder:
                folders.append(entry.path)
            yield entry.path if is_file else None
    random.shuffle(folders)
    for path in folders if depth else ():
        try:
            yield from _files_below(path, depth - 1)
        except OSError:
            continue  # a folder that we may not read
