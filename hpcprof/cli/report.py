"""``hpcprof report``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof import pipeline
from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.cli.collect import show
from hpcprof.errors import UsageError


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "html", "json"]), default="text")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the page (--format html); default: RUN_DIR/report.html.",
)
def report(run_dir: Path, form: str, output: Path | None) -> None:
    """Print the verdict of a collected run again; computes nothing.

    RUN_DIR is a run folder in which hpcprof collect has been run. With --format html the verdict
    becomes one page with figures, which opens without a network.
    """
    if output and form != "html":
        raise UsageError("--output is for the page: add --format html, or redirect the output")
    paths = ArtifactPaths(run_dir)
    what = f"the verdict (make it with: hpcprof collect {run_dir})"
    record = read_json(paths.findings, what)
    if form == "html":
        warnings: list[str] = []
        click.echo(pipeline.write_page(paths, record, output or paths.report_html, warnings))
        for warning in warnings:
            click.echo(f"hpcprof: {warning}", err=True)
    else:
        page = paths.report_html if paths.report_html.exists() else None
        show(record, as_json=form == "json", page=page)
