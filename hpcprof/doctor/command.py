"""Runs a program with a time limit and reads what it said. No answer is an exception."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class NoAnswerError(Exception):
    """A program that is missing, cannot be run, or did not end in time.

    ``printed`` is what it said before.
    """

    def __init__(self, what: str, printed: str = "") -> None:
        super().__init__(what)
        self.printed = printed


class Said(NamedTuple):
    """Exit code (as a shell reports it) and all that was printed, stdout and stderr together."""

    code: int
    text: str

    @property
    def last_line(self) -> str:
        """What it said last, for a message."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][-200:] if lines else "nothing"


def find(name: str, environ: Mapping[str, str]) -> str | None:
    """Path of a program on PATH, None when it is not there."""
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    seconds: float,
    cwd: str = "/",
    own_group: bool = False,
) -> Said:
    """Run a program to its end. Raises NoAnswerError.

    ``own_group``: it gets a session of its own, and what it has started is ended with it when the
    time is up. Checks need no such thing: their lane ends their group.
    Its output goes to a file: a daemon that it leaves behind (nsys has some) would keep a pipe open
    and us waiting. Descriptors are handed down: under srun --mpi=pmi2 one of them is PMI's.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                cwd=cwd,
                close_fds=False,
                start_new_session=own_group,
            )
        except OSError as error:
            raise NoAnswerError(f"{argv[0]} cannot be run: {error.strerror}") from None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(process, own_group=own_group)
            said = _read(output.fileno())
            last = Said(0, said).last_line
            name = os.path.basename(argv[0])
            what = f"{name} did not end in {seconds:.0f} s; it said {last}"
            raise NoAnswerError(what, said) from None
        except BaseException:  # Ctrl-C, which another session does not get
            _kill(process, own_group=own_group)
            raise
        return Said(code if code >= 0 else 128 - code, _read(output.fileno()))


def _kill(process: subprocess.Popen[bytes], *, own_group: bool) -> None:
    """Not reaped before this, so its id is nobody else's."""
    if own_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as stream:
        return stream.read().decode("utf-8", "replace")
