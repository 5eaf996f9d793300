"""Stands between nsys and the application: the program that nsys is told to profile.

Run as ``python -I -S shim.py ATTEMPT TMPDIR DESCRIPTORS IGNORED -- COMMAND``; see ``shim_argv``
in attempt. Imports nothing of hpcprof. It

1. takes the start token, so that the application can never be started twice;
2. gives the application back what nsys changed: stdin, stdout and stderr, TMPDIR, signals;
3. starts it as its child, in the process group to which nsys passes TERM and INT on;
4. writes down how it ended, because nsys returns 0 when its agent was lost.

A child and not an exec: only a parent can see by which signal the application died.
"""

from __future__ import annotations

import os
import signal
import sys

_WITNESSED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGXCPU,
)


def main(argv: list[str]) -> int:
    """Run the command in ``argv``; returns the exit code for nsys (128 + signal as in a shell)."""
    attempt, tmpdir, descriptors, ignored_text, _, *command = argv
    if not _mark(attempt, "token"):
        return 1  # the launcher gave this attempt up and runs the application itself
    ignored = {int(text) for text in ignored_text.split(",") if text}
    actions = _original_streams(attempt, descriptors)
    _witness_signals(attempt, ignored)
    reset = [s for s in (*_WITNESSED, signal.SIGPIPE, signal.SIGXFSZ) if s not in ignored]
    environ = _application_environ(tmpdir)
    try:
        pid = os.posix_spawnp(command[0], command, environ, file_actions=actions, setsigdef=reset)
    except OSError as error:
        text = f"hpcprof launch: cannot run {command[0]!r}: {error.strerror}\n"
        os.write(int(descriptors.split(",")[2].split(":")[0]), text.encode())
        code = 127 if isinstance(error, FileNotFoundError) else 126
        _mark(attempt, f"exit.code.{code}")
        _mark(attempt, f"started.{os.getpid()}.0")
        return code
    _mark(attempt, f"started.{os.getpid()}.{pid}")
    for kind, descriptor, *_ in actions:
        if kind == os.POSIX_SPAWN_CLOSE:
            os.close(descriptor)  # a reader must see the end of a pipe when the application ends
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        _mark(attempt, f"exit.signal.{os.WTERMSIG(status)}")
        return 128 + os.WTERMSIG(status)
    _mark(attempt, f"exit.code.{os.WEXITSTATUS(status)}")
    return os.WEXITSTATUS(status)


def _application_environ(tmpdir: str) -> dict[str, str]:
    """Our environment with the application's own TMPDIR and without the mark of nsys's processes.

    ``tmpdir`` is "=" and the value, or "" when it was not set.
    """
    environ = dict(os.environ)
    environ.pop("HPCPROF_NSYS_ATTEMPT", None)
    if tmpdir:
        environ["TMPDIR"] = tmpdir[1:]
    else:
        environ.pop("TMPDIR", None)
    return environ


def _original_streams(attempt: str, descriptors: str) -> list[tuple[int, ...]]:
    """Spawn actions that give the application the launcher's own stdin, stdout and stderr.

    ``descriptors`` is "FD:DEVICE:INODE" for each. nsys 2022.4 hands open descriptors down; where
    one is missing or another file, the application keeps what nsys gave it, and a note says so.
    """
    actions: list[tuple[int, ...]] = []
    numbers = []
    for target, text in enumerate(descriptors.split(",")):
        number, device, inode = (int(part) for part in text.split(":"))
        try:
            found = os.fstat(number)
            same = (found.st_dev, found.st_ino) == (device, inode)
        except OSError:
            same = False
        if not same:
            _mark(attempt, f"note.{('stdin', 'stdout', 'stderr')[target]}")
            continue
        actions.append((os.POSIX_SPAWN_DUP2, number, target))
        numbers.append(number)
    return actions + [(os.POSIX_SPAWN_CLOSE, number) for number in numbers]


def _witness_signals(attempt: str, ignored: set[int]) -> None:
    """Survive every signal, and leave a file ``signal.N`` that says it came.

    Whoever signals the whole group or job step reaches us and the application alike; the launcher
    then knows that the application has it already.
    """

    def witness(signum: int, _frame: object) -> None:
        _mark(attempt, f"signal.{signum}")

    for signum in _WITNESSED:
        signal.signal(signum, signal.SIG_IGN if signum in ignored else witness)


def _mark(attempt: str, name: str) -> bool:
    """Create an empty file; False when it is there or cannot be made.

    What happened is in the name: that is atomic, and needs no space on a disk that is full.
    """
    try:
        os.close(os.open(os.path.join(attempt, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
