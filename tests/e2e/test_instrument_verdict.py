"""A slow rank of an unmodified Horovod training is named without nsys and without tf.profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof import pipeline
from tests.e2e import instrumented

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLOW_RANK = 1


def verdict(python: Path, folder: Path, script: str, phase: str) -> list[tuple[object, ...]]:
    """Who is accused, of which phase and cause, and how late (ms) where one rank is slow in it."""
    env = instrumented.slow({phase: 60}, steps="all", rank=SLOW_RANK)
    run = instrumented.launched(python, script, folder, env, ranks=2, op_steps=instrumented.WINDOW)
    record = pipeline.collect(run.paths.root).record
    late = [each for each in record["findings"] if each["rule"] == "rank-arrives-late"]
    return [(each["ranks"], each["phase"], each["cause"]) for each in late]


@pytest.mark.parametrize(
    ("script", "phase", "cause"),
    [
        ("keras2_fit.py", "backward", "compute"),
        ("horovod_tape.py", "forward", "compute"),
        ("horovod_tape.py", "input", "input"),
    ],
)
def test_the_recorder_alone_names_the_slow_rank_and_its_phase(
    horovod_python: Path, tmp_path: Path, script: str, phase: str, cause: str
) -> None:
    accused = verdict(horovod_python, tmp_path / "run", script, phase)
    assert accused == [([SLOW_RANK], phase, cause)]
