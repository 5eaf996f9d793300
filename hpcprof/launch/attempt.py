"""One attempt to start the application under nsys, as the folder that launcher and shim share.

What happened is in the names of empty files: ``token``, ``started.SHIM.APP``, ``exit.code.7`` or
``exit.signal.9``, ``signal.15``, ``note.stdout``. The shim writes them without importing this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple, Sequence

from hpcprof.launch.processes import Fate

# in the environment of nsys and its helpers, and taken out of the application's: by it, and never
# by a name, the processes of this attempt are found
MARK_VARIABLE = "HPCPROF_NSYS_ATTEMPT"

_SHIM = Path(__file__).with_name("shim.py")
_FIRST_DESCRIPTOR = 100  # above what launchers of MPI hand down; nsys 2022.4 itself uses 251


class Started(NamedTuple):
    """Process ids of the shim and of the application (0: it could not be executed)."""

    shim_pid: int
    application_pid: int


class Attempt:
    """The shared folder of one attempt."""

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises OSError."""
        folder.mkdir(mode=0o700)
        self.folder = folder

    @property
    def mark(self) -> str:
        """The environment entry that nsys's processes of this attempt carry."""
        return f"{MARK_VARIABLE}={self.folder}"

    def revoke(self) -> bool:
        """Take the start token away; False when the shim was faster: the application starts."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            os.close(os.open(self.folder / "token", flags, 0o600))
        except FileExistsError:
            return False
        except OSError:
            pass  # what we cannot create, the shim cannot create either
        return True

    def started(self) -> Started | None:
        """Who runs, None as long as the application has not been started."""
        return started_in(self.folder)

    def fate(self) -> Fate | None:
        """How the application ended, None while it runs."""
        for name in self._names():
            word, _, rest = name.partition(".")
            if word == "exit":
                return Fate.from_text(rest.replace(".", " "))
        return None

    def take_witness(self, signum: int) -> bool:
        """True when the shim got ``signum`` too since the last question."""
        try:
            os.unlink(self.folder / f"signal.{signum}")
        except OSError:
            return False
        return True

    def notes(self) -> list[str]:
        """What the shim had to do differently, as warnings."""
        streams = [name[5:] for name in self._names() if name.startswith("note.")]
        return [
            f"this nsys did not hand the original {stream} down; the application's is nsys's own"
            for stream in sorted(streams)
        ]

    def _names(self) -> list[str]:
        return _names_in(self.folder)


def started_in(folder: Path) -> Started | None:
    """Who was started in the attempt of this folder, perhaps another launcher's."""
    for name in _names_in(folder):
        word, _, rest = name.partition(".")
        if word == "started":
            shim, _, application = rest.partition(".")
            return Started(int(shim), int(application))
    return None


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def shim_argv(
    attempt: Attempt, tmpdir: str | None, ignored: Sequence[int], command: Sequence[str]
) -> tuple[list[str], list[int]]:
    """The command that nsys runs, and descriptors to close once nsys has been started.

    The application's stdin, stdout and stderr travel as descriptors of their own: nsys prints its
    progress to its stdout, and would put pipes in the place of all three.
    """
    import fcntl

    copies = []
    described = []
    for target in (0, 1, 2):
        try:
            copy = fcntl.fcntl(target, fcntl.F_DUPFD, _FIRST_DESCRIPTOR)
        except OSError:  # closed by whoever started us
            opened = os.open(os.devnull, os.O_RDWR)
            copy = fcntl.fcntl(opened, fcntl.F_DUPFD, _FIRST_DESCRIPTOR)
            os.close(opened)
        found = os.fstat(copy)
        copies.append(copy)
        described.append(f"{copy}:{found.st_dev}:{found.st_ino}")
    argv = [
        sys.executable,
        # isolated and without site: a quarter of the start-up time, and no file of the user's
        # current folder in the place of a standard module
        "-I",
        "-S",
        str(_SHIM),
        str(attempt.folder),
        "" if tmpdir is None else f"={tmpdir}",
        ",".join(described),
        ",".join(str(int(signum)) for signum in ignored),
        "--",
        *command,
    ]
    return argv, copies
