"""``hpcprof init``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.job_spec import STRATEGIES
from hpcprof.submit import submission


@click.command()
@click.option("--site", default="auto", metavar="S", help="Site name or file; auto finds it out.")
@click.option("--strategy", type=click.Choice(STRATEGIES), default="horovod", show_default=True)
@click.option("-o", "--output", default="hpcprof.yaml", metavar="FILE", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def init(site: str, strategy: str, output: str, *, force: bool) -> None:
    """Write a commented job spec to begin with."""
    submission.init(Path(output), strategy=strategy, site=site, force=force)
    click.echo(f"{output} written; set command: and time:, then: hpcprof submit {output}")
