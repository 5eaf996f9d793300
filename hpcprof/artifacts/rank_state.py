"""Files in the state folder of a rank: how training, launcher and ``hpcprof flush`` talk.

The folder is node-local (``rank_env.STATE_FOLDER``), private to one rank, and gone when the rank
has ended; nothing in it is an artifact. A file is a message: it appears whole, is left by one side
only, and is looked for by the other. Standard library only; used inside the training.
"""

from __future__ import annotations

import os

ANNOTATE_ERROR = "annotate-error"  # annotate's last words: one line each, appended
NVTX_VERSION = "nvtx-version"  # of the training's package nvtx, as far as it tells
HOROVOD_SIZE = "horovod-size"  # hvd.size() after the first step
OPEN_WINDOW = "window-open"  # the first step to record begins; text: CLOCK_MONOTONIC ns
CLOSE_WINDOW = "window-close"  # the last one has ended; text: CLOCK_MONOTONIC ns
WINDOW_FAILED = "window-failed"  # the steps will not be recorded; text: why, in words
HANG = "hang"  # no step for too long; text: see ``annotate.watchdog``
STOP = "stop"  # end the recording now and write it; text: why: "before the time limit"
STOPPED = "stopped"  # the launcher's answer to it; text: "ok: …" or "problem: …", in words


def leave(folder: str | os.PathLike[str], name: str, text: str) -> None:
    """Leave a message; it replaces an earlier one of this name. Raises OSError."""
    path = os.path.join(folder, name)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def find(folder: str | os.PathLike[str], name: str) -> str | None:
    """The text of a message, None when none has been left. Raises nothing."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None
