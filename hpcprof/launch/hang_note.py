"""A note in the scratch folder that starts of nsys hang on this node, for the ranks that follow.

Without it eight ranks would wait for nsys one after the other, each as long as the first.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_NAME = "nsys-hangs"
_VALID_SECONDS = 300.0  # somebody may have mended the node


class HangNote:
    """The note as one rank leaves and finds it."""

    def __init__(self, scratch: Path) -> None:
        """``scratch`` is shared by the ranks of one user on a node."""
        self._path = scratch / _NAME
        self._is_ours = False

    def found(self) -> str | None:
        """Why a start is not worth a try, in words; None when none has hung, or only ours."""
        if self._is_ours:
            return None
        try:
            age = time.time() - os.stat(self._path).st_mtime
        except OSError:
            return None
        if not 0 <= age < _VALID_SECONDS:
            return None
        return f"another start of nsys hung on this node {age:.0f} s ago, so none was tried"

    def leave(self) -> None:
        """Our start has hung."""
        self._is_ours = True
        with contextlib.suppress(OSError):  # costs the next rank its own wait
            self._path.touch(mode=0o600)

    def remove(self) -> None:
        """A start has succeeded."""
        with contextlib.suppress(OSError):
            self._path.unlink()
