"""What the training tells the launcher, through the node-local state folder. Never raises."""

from __future__ import annotations

import contextlib
import os

from hpcprof.artifacts import rank_env, rank_state


def leave_note(text: str) -> None:
    """One line for the warnings of the rank's manifest."""
    folder = os.environ.get(rank_env.STATE_FOLDER)
    if not folder:
        return
    path = os.path.join(folder, rank_state.ANNOTATE_ERROR)
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text.replace("\n", " ") + "\n")
    except OSError:
        pass  # the note is a courtesy; the training comes first


def leave_message(name: str, text: str) -> bool:
    """Leave a message of ``rank_state``; False, with a note, when nobody will get it."""
    folder = os.environ.get(rank_env.STATE_FOLDER)
    if not folder:
        return False
    try:
        rank_state.leave(folder, name, text)
    except OSError as error:
        leave_note(f"the launcher could not be told {name}: {error.strerror}")
        return False
    return True


def say(text: str) -> None:
    """One line on stderr, in the name of this rank.

    Written past ``sys.stderr``, whose lock may be held by the very thread that hangs.
    """
    rank = os.environ.get(rank_env.RANK, "?")
    with contextlib.suppress(OSError):  # closed, or a full pipe that does not block
        os.write(2, f"hpcprof: rank {rank}: {text}\n".encode())
