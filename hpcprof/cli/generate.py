"""``hpcprof generate``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.artifacts.atomic import write_text
from hpcprof.submit import submission


@click.command()
@click.argument("spec")
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of the terminal.")
def generate(spec: str, output: str | None) -> None:
    """Show the job script of a spec.

    Nothing is submitted; SPEC is a job spec as hpcprof init writes it.
    """
    script = submission.generate(Path(spec))
    if output is None:
        click.echo(script, nl=False)
    else:
        write_text(Path(output), script)
        click.echo(f"{output} written; submit it with: sbatch {output}")
