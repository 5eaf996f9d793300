"""``hpcprof report``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.cli.collect import show


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def report(run_dir: Path, form: str) -> None:
    """Print the verdict of a collected run again; computes nothing.

    RUN_DIR is a run folder in which hpcprof collect has been run.
    """
    path = ArtifactPaths(run_dir).findings
    what = f"the verdict (make it with: hpcprof collect {run_dir})"
    show(read_json(path, what), as_json=form == "json")
