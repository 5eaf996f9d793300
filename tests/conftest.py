"""Plugins and fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.setup import paths as tools

pytest_plugins = ["tests.browser", "tests.cluster.fixture"]

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Under nohup or in the background of a script signals are ignored, and children inherit that.

    A handler is not inherited: this session goes on ignoring them, and the programs that tests
    start and interrupt do not.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _installed(found: Path | None, what: str) -> Path:
    if found is None:
        pytest.skip(f"no {what} (make setup)")
    return found


@pytest.fixture(scope="session")
def horovod_python() -> Path:
    """Interpreter with TensorFlow and Horovod; skips without it."""
    return _installed(tools.train_python(), "training environment with Horovod")


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    """Interpreter with TensorFlow and nothing else; skips without it."""
    return _installed(tools.tensorflow_python(), "environment with TensorFlow")


@pytest.fixture(scope="session")
def keras3_python() -> Path:
    """Interpreter with Keras 3 and a TensorFlow that can name its operations; skips without it."""
    return _installed(tools.keras3_python(), "environment with TensorFlow 2.17 and Keras 3")


@pytest.fixture(scope="session")
def nsys() -> Path:
    """The Nsight Systems command; skips without it."""
    return _installed(tools.nsys(), "nsys")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of real files by others: HPCPROF_TEST_DATA, else ../shared/data. Skips without it."""
    folder = Path(os.environ.get("HPCPROF_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder}; set HPCPROF_TEST_DATA")
    return folder
