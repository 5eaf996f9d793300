"""Fixtures for real programs under the launcher."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A TMPDIR with a short path, as nsys makes sockets in it."""
    folder = Path("/tmp") / f"hp{os.getpid()}-{abs(hash(tmp_path)) % 10**6}"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)
