"""Writes a file beside its target and renames it: a reader never sees half a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hpcprof.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one rename; mode 0600 under our umask.

    Raises OSError (disk full, read-only); the old content is then still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with sorted keys, atomically. Raises OSError."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object. ``what`` names it in the error, for example "manifest of rank 3".

    Raises InputError with the path and the likely cause.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{what} is missing: {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{what} cannot be read: {path} ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} is not a JSON object: {path}")
    return value
