"""Starting, finding and ending processes by id. Does not know what nsys is."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import Iterable, Iterator, Mapping, NamedTuple, NoReturn, Sequence

from hpcprof.launch.signals import SignalInbox

# as a shell reports it
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


class Fate(NamedTuple):
    """How a process ended: with ``code``, or by ``signum`` (then ``code`` is 128 + signum)."""

    code: int
    signum: int = 0

    @classmethod
    def from_wait_status(cls, status: int) -> Fate:
        """Fate from what waitpid returned."""
        if os.WIFSIGNALED(status):
            return cls(128 + os.WTERMSIG(status), os.WTERMSIG(status))
        return cls(os.WEXITSTATUS(status))

    @classmethod
    def from_text(cls, text: str) -> Fate | None:
        """Fate from ``code 7`` or ``signal 9``, None when it is neither."""
        word, _, number = text.strip().partition(" ")
        if word == "code" and number.isdigit():
            return cls(int(number))
        if word == "signal" and number.isdigit():
            return cls(128 + int(number), int(number))
        return None


class Program(NamedTuple):
    """What to execute. ``ignore``: signals it shall ignore; ``own_group``: out of reach of the
    terminal; ``output``: descriptor for its stdout and stderr, with stdin from /dev/null."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    umask: int
    ignore: Iterable[int] = ()
    own_group: bool = False
    output: int | None = None


def execute(program: Program, inbox: SignalInbox) -> NoReturn:
    """Replace this process by the program; exit 126 or 127 with one line when that fails."""
    try:
        if program.own_group:
            os.setpgid(0, 0)
        if program.output is not None:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(program.output, 1)
            os.dup2(program.output, 2)
        os.umask(program.umask)
        inbox.restore(ignore=program.ignore)
        os.execvpe(program.argv[0], list(program.argv), dict(program.environ))
    except OSError as error:
        os.write(2, exec_failure(program.argv[0], error).encode())
        os._exit(exec_failure_code(error))


def exec_failure(name: str, error: OSError) -> str:
    """The line for a program that could not be executed."""
    return f"hpcprof launch: cannot run {name!r}: {error.strerror}\n"


def exec_failure_code(error: OSError) -> int:
    """The exit code that a shell gives for it."""
    return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE


def spawn(program: Program, inbox: SignalInbox) -> int:
    """Start the program as a child and return its process id. Raises OSError when fork fails.

    fork and not subprocess: descriptors that srun or mpirun hand down (PMI_FD) must stay open,
    and subprocess alone costs a tenth of the start-up budget to import.
    """
    pid = os.fork()
    if pid == 0:
        try:
            execute(program, inbox)
        finally:
            # an exception must never return into the launcher's code in a second process
            os._exit(_NOT_EXECUTABLE)
    return pid


def reap(pid: int) -> Fate | None:
    """Fate of our child ``pid``, None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return Fate(0)
    return Fate.from_wait_status(status) if done else None


def start_ticks(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None when it is gone or a zombie.

    Together with the id it identifies a process for good (ids are reused).
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else None


def cpu_ticks(pid: int) -> int:
    """CPU time of ``pid`` and of its ended children in clock ticks, 0 when it is gone."""
    fields = _stat_fields(pid)
    return sum(int(field) for field in fields[11:15]) if fields else 0


def parent(pid: int) -> int | None:
    """Process id of the parent, None when ``pid`` is gone."""
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (field 3 of proc(5)), [] when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def with_environment(entry: str) -> list[int]:
    """Our own processes that were started with ``NAME=value`` in their environment."""
    wanted = os.fsencode(entry)
    return [pid for pid, entries in environments() if wanted in entries and pid != os.getpid()]


def environments() -> Iterator[tuple[int, list[bytes]]]:
    """Process id and ``NAME=value`` entries, as at the start, of all processes we may look at."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                entries = stream.read().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        yield int(name), entries


def send(pid: int, signum: int) -> bool:
    """Send a signal; False when the process is gone or not ours any more."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(pids: Iterable[int], *, grace_seconds: float) -> None:
    """TERM, then KILL those that are still there after ``grace_seconds``.

    Does not wait for what KILL does: in a driver that hangs, for example, a process outlives it.
    The start time is compared before KILL, so that a reused id is never hit.
    """
    started = {pid: start_ticks(pid) for pid in pids}
    for pid in started:
        send(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while started and time.monotonic() < deadline:
        started = {p: t for p, t in started.items() if t is not None and start_ticks(p) == t}
        time.sleep(0.02)
    for pid, ticks in started.items():
        if ticks is not None and start_ticks(pid) == ticks:
            send(pid, signal.SIGKILL)


def say(text: str, who: str = "launch") -> None:
    """One line on stderr; a closed stderr is no reason to fail."""
    try:
        sys.stderr.write(f"hpcprof {who}: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
