"""``hpcprof collect``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcprof import pipeline
from hpcprof.reports.document import build_document
from hpcprof.reports.text import render_terminal, render_text

_LEVELS = ("info", "warn", "critical")


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print findings.json instead of the report.")
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    help="Exit with 1 when there is a finding of this level or above.",
)
def collect(run_dir: Path, as_json: bool, fail_on: str | None) -> int:  # noqa: FBT001 - click's way
    """Read what a job recorded, judge it and print the verdict.

    RUN_DIR is the run folder that hpcprof submit or launch named. Collect can be run again.
    """
    collected = pipeline.collect(run_dir)
    for warning in collected.warnings:
        click.echo(f"hpcprof: {warning}", err=True)
    show(collected.record, as_json=as_json, page=collected.page)
    return exit_code(collected.record, fail_on)


def show(record: dict[str, object], *, as_json: bool, page: Path | None = None) -> None:
    """Print a findings record: coloured and as wide as the terminal, or plain 80 columns.

    Below the text it says where the ``page`` is.
    """
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    if sys.stdout.isatty():
        click.echo(render_terminal(build_document(record)), nl=False)
    else:
        click.echo(render_text(build_document(record)), nl=False)
    if page:
        click.echo(f"\npage         {page}")


def exit_code(record: dict[str, object], fail_on: str | None) -> int:
    """1 when a judged finding reaches ``fail_on``, else 0."""
    if fail_on is None:
        return 0
    findings = record["findings"]
    assert isinstance(findings, list)
    worst = [f["level"] for f in findings if f["status"] == "ok"]
    return int(any(_LEVELS.index(level) >= _LEVELS.index(fail_on) for level in worst))
