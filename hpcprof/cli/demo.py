"""``hpcprof demo``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcprof import demo as demo_run
from hpcprof.cli.collect import show


@click.command()
@click.option(
    "--python",
    "python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path(sys.executable),
    help="Python of an environment that holds TensorFlow.",
)
@click.option("--ranks", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--steps", type=click.IntRange(10), default=60, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("hpcprof-runs"),
    show_default=True,
    help="Folder for the run and its data.",
)
def demo(python: Path, ranks: int, steps: int, output: Path) -> int:
    """Train a small model on this machine, slow one rank's input, and see it found.

    Needs TensorFlow; no Slurm, GPU, nsys or root.
    """
    click.echo(
        f"Training image-cnn on {ranks} local ranks for {steps} steps. hpcprof is not told, but\n"
        f"rank {ranks - 1} is made to wait {demo_run.DELAY_MS} ms longer for each of its batches."
    )
    collected = demo_run.demo(python, ranks=ranks, steps=steps, output=output)
    show(collected.record, as_json=False, page=collected.page)
    return 0
