"""One nsys start at a time on a node, whoever the users are.

nsys keeps one table of sessions per node (/dev/shm/NSys-<version>); of eight starts at the same
moment without a lock some never reach their application.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Callable

NODE_LOCK = Path("/dev/shm/hpcprof-nsys.lock")
_POLL_SECONDS = 0.02
# eight healthy starts take 4 s; whoever holds the lock longer than this is stuck or hostile
_MAX_WAIT_SECONDS = 60.0


class NodeLock:
    """Held from construction to ``release``; ``problem`` says why it is not held after all."""

    def __init__(
        self,
        scratch: Path,
        pause: Callable[[float], None],
        *,
        limit_seconds: float | None = None,
    ) -> None:
        """Wait for the lock, as a rule a minute. ``pause`` sleeps and may raise to give up.

        Falls back to a lock in ``scratch``, which excludes only the user's own starts.
        """
        self.problem: str | None = None
        self._descriptor: int | None = None
        try:
            descriptor = _open_shared(NODE_LOCK)
        except OSError:
            try:
                descriptor = _open_shared(scratch / NODE_LOCK.name)
            except OSError as error:
                self.problem = f"no lock for the start of nsys: {error}"
                return
        limit = _MAX_WAIT_SECONDS if limit_seconds is None else limit_seconds
        deadline = time.monotonic() + limit
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                os.close(descriptor)
                self.problem = f"the start lock was not free for {limit:.0f} s"
                return
            try:
                pause(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the next start go on. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_shared(path: Path) -> int:
    """Open the lock file that all users share, creating it with mode 0666. Raises OSError.

    Opened without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on another user's
    file (fs.protected_regular). Only locked, never written, so no content can be planted.
    """
    for _ in range(3):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o666)
            except FileExistsError:
                continue  # another rank was faster
            os.fchmod(descriptor, 0o666)  # our umask took the others' bits away
            return descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return descriptor
    raise OSError(errno.EAGAIN, "appears and vanishes", str(path))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
