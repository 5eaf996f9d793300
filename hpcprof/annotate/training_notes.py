"""What the hooks find out about the training, kept until it is written to ``training.json``.

The fields are those of ``artifacts.training_record``. Raises nothing: the training comes first.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from hpcprof.annotate.notes import leave_note
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.atomic import write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.training_record import new_training_record

_lock = threading.RLock()  # a signal handler may call, in the thread that holds it
_record: dict[str, Any] = new_training_record()
_has_failed = False
_is_written = False  # what the record holds now


def put(**fields: Any) -> None:
    """Set fields of the record; a mapping is merged into the one that is there."""
    global _is_written
    with _lock:
        _is_written = False
        for name, value in fields.items():
            old = _record.get(name)
            if isinstance(old, dict) and isinstance(value, dict):
                old.update(value)
            else:
                _record[name] = value


def warn(text: str) -> None:
    """One more line for ``warnings``; the same line is kept once."""
    global _is_written
    with _lock:
        _is_written = False
        if text not in _record["warnings"]:
            _record["warnings"].append(text)


def seen(name: str) -> Any:
    """The value of a field as it is now; of a mapping or list the living one: do not change it."""
    return _record.get(name)


def write() -> None:
    """Write the record into the rank's folder, whole; nothing when it is there as it is now.

    Does nothing outside of the launcher.
    """
    global _has_failed, _is_written
    folder, rank = os.environ.get(rank_env.RANK_FOLDER), os.environ.get(rank_env.RANK, "")
    if not folder or not rank.isdigit() or _has_failed:
        return
    # the folder that was given, whatever it is called
    path = Path(folder) / ArtifactPaths(folder).training(int(rank)).name
    try:
        with _lock:
            if not _is_written:
                write_json(path, _record)
                _is_written = True
    except Exception as error:  # a full disk, or a value of the training's that JSON cannot hold
        _has_failed = True
        leave_note(f"what hooks saw of the training was not written down: {error!r}")
