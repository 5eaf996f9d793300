"""Plugins and fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.browser", "tests.cluster.fixture"]

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of real files by others: HPCPROF_TEST_DATA, else ../shared/data. Skips without it."""
    folder = Path(os.environ.get("HPCPROF_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder}; set HPCPROF_TEST_DATA")
    return folder
