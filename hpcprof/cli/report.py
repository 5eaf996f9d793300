"""``hpcprof report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcprof.artifacts.atomic import read_json, write_text
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.cli.collect import show
from hpcprof.errors import InputError, UsageError
from hpcprof.reports.document import build_document
from hpcprof.reports.html import render_html


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
        click.echo(_write_page(record, paths, output or paths.report_html))
    else:
        show(record, as_json=form == "json")


def _write_page(record: dict[str, Any], paths: ArtifactPaths, output: Path) -> Path:
    figures = None
    if paths.figures.exists():
        try:
            figures = read_json(paths.figures, "what the figures show")
        except InputError as error:
            click.echo(f"hpcprof: {error}; the page has no figures", err=True)
    try:
        write_text(output, render_html(build_document(record), record, figures))
    except OSError as error:
        raise InputError(
            f"the page cannot be written: {output} ({error.strerror}); name another file with -o"
        ) from None
    return output
