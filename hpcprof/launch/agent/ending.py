"""When an agent shall end: watched by a thread, as the main one may be stuck in a file or MPI."""

from __future__ import annotations

import os
import signal
import threading
import time

from hpcprof.launch.signals import ENDING, SignalInbox

# SIGUSR2 is how the job script asks: srun passes it on, while SIGTERM makes it kill its tasks
ASKED_TO_END = ENDING | {signal.SIGUSR2}

LAST_SECONDS = 8.0  # for the last burst, whatever hangs
# mpirun, srun and our own parent may all pass one signal on; later ones are meant as a second
SECOND_AFTER_SECONDS = 1.0
_LOOK_SECONDS = 2.0


class Ending:
    """``stop`` is set by the first ending signal, or when whoever started this process is gone.

    A second signal, or LAST_SECONDS, ends the process at once with code 0.
    """

    def __init__(self, inbox: SignalInbox) -> None:
        self.stop = threading.Event()
        self.never = threading.Event()  # for what must go on after ``stop``
        self.reason = ""
        self._inbox = inbox
        self._parent = os.getppid()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.reason:
            received = self._inbox.wait(_LOOK_SECONDS)
            if received is not None and received.signum in ASKED_TO_END:
                self.reason = signal.Signals(received.signum).name
            elif os.getppid() != self._parent:
                self.reason = "whoever started the agent is gone"
        self.stop.set()
        begun = time.monotonic()
        while time.monotonic() - begun < LAST_SECONDS:
            received = self._inbox.wait(begun + LAST_SECONDS - time.monotonic())
            is_second = time.monotonic() - begun > SECOND_AFTER_SECONDS
            if received is not None and received.signum in ASKED_TO_END and is_second:
                break
        os._exit(0)
