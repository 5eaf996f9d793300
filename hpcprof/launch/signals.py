"""Signals of the launcher: kept waiting until asked for, and put back for the application.

Does not decide who a signal is passed on to.
"""

from __future__ import annotations

import os
import signal
from typing import Iterable, NamedTuple

# what a batch system, a shell or a user sends to a job; the rest keeps its default effect
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGXCPU,
)
# these end a start that is still under way
ENDING = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))

# the interpreter ignores these for itself; a program started from a shell has them at default
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SI_KERNEL = 128  # si_code of a signal made by the terminal driver (asm-generic/siginfo.h)


class Received(NamedTuple):
    """One signal; ``from_terminal`` when Ctrl-C or Ctrl-\\ sent it to the whole process group."""

    signum: int
    from_terminal: bool


class SignalInbox:
    """Blocks the signals of ``FORWARDED`` and SIGCHLD, so that none is lost or interrupts a call.

    Signals that were ignored when we started (nohup) stay ignored and are not seen.
    """

    def __init__(self) -> None:
        self.ignored = tuple(s for s in FORWARDED if signal.getsignal(s) is signal.SIG_IGN)
        self._child_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        # with SIGCHLD ignored the kernel would reap the application and its exit code be gone
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._watched = {s for s in FORWARDED if s not in self.ignored} | {signal.SIGCHLD}
        self._original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)

    def wait(self, seconds: float | None = None) -> Received | None:
        """The next signal, or None after ``seconds`` (None waits without limit) or a SIGCHLD."""
        if seconds is None:
            info = signal.sigwaitinfo(self._watched)
        else:
            answer = signal.sigtimedwait(self._watched, max(seconds, 0.0))
            if answer is None:
                return None
            info = answer
        if info.si_signo == signal.SIGCHLD:
            return None
        from_terminal = info.si_code == _SI_KERNEL and info.si_signo in (
            signal.SIGINT,
            signal.SIGQUIT,
        )
        return Received(info.si_signo, from_terminal)

    def close(self) -> None:
        """Unblock the signals again, for a caller that goes on afterwards."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._original_mask)

    def restore(self, *, ignore: Iterable[int] = ()) -> None:
        """Put this process back to what it was started with, just before it executes a program.

        ``ignore`` are signals that the program shall ignore in addition.
        """
        for signum in _IGNORED_BY_PYTHON:
            signal.signal(signum, signal.SIG_DFL)
        if self._child_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for ignored in ignore:
            signal.signal(ignored, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._original_mask)


def die_by(signum: int) -> None:
    """End this process by ``signum``, as the application ended, so that Slurm records the same.

    Returns only when the signal cannot end a process; the caller then exits with 128 + signum.
    """
    import resource

    # the application has left its core file already, ours would replace it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)
