"""The whole pipeline on this machine, on a run with a known fault."""

from __future__ import annotations

from pathlib import Path

from hpcprof import pipeline
from hpcprof.errors import EnvironmentLacksError
from hpcprof.launch.local import run_local

DELAY_MS = 150


def demo(python: Path, *, ranks: int, steps: int, output: Path) -> pipeline.Collected:
    """Train with one slowed rank and return what collect made of it.

    ``python`` is the interpreter of an environment with TensorFlow. Raises EnvironmentLacksError
    when the training fails.
    """
    command = [str(python), "-m", "hpcprof", "workload", "image-cnn"]
    command += ["--strategy", "multiworker", "--steps", str(steps)]
    command += ["--data-dir", str(output.absolute() / "demo-data")]
    command += ["--slow-input", f"{ranks - 1}:{DELAY_MS}"]
    run_dir, exit_code = run_local(
        command, ranks=ranks, name="demo", strategy="multiworker", output=output
    )
    if exit_code != 0:
        raise EnvironmentLacksError(
            f"the demo training ended with exit code {exit_code}; its output is above and in "
            f"{run_dir}/ranks/*/output.log. Does {python} have TensorFlow?"
        )
    return pipeline.collect(run_dir)
