"""``hpcprof doctor``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpcprof.doctor.diagnosis import diagnose
from hpcprof.doctor.table import render_terminal, render_text
from hpcprof.errors import UsageError

_DEFAULT_SPEC = Path("hpcprof.yaml")


@click.command()
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SPEC] [-- SRUN OPTIONS]")
@click.option("--srun", is_flag=True, help="Check the compute nodes too, through one srun.")
@click.option(
    "--wait",
    "wait_s",
    default=30,
    show_default=True,
    type=click.IntRange(1),
    metavar="S",
    help="With --srun: seconds to wait for free nodes.",
)
@click.option("--python", metavar="PATH", help="The training's Python, instead of the spec's.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def doctor(
    words: tuple[str, ...], *, srun: bool, wait_s: int, python: str | None, form: str
) -> int:
    """Check whether this machine or cluster can run and record a training.

    SPEC is a job spec (default: hpcprof.yaml, if it is here). Takes under a minute, with --srun
    plus the time until nodes are free. The exit code is 4 when something FAILs.
    """
    spec, extra = _split(words)
    if extra and not srun:
        raise UsageError(f"{' '.join(extra)}: options of srun are of use with --srun only")
    found = diagnose(
        spec, srun=srun, srun_extra=extra, python=python, wait_s=wait_s, progress=_progress
    )
    _progress("")
    if form == "json":
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        render = render_terminal if sys.stdout.isatty() else render_text
        click.echo(render(found), nl=False)
    return found.exit_code


def _split(words: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """The job spec, and the words behind "--", which click has taken away."""
    if words and not words[0].startswith("-"):
        return Path(words[0]), words[1:]
    return (_DEFAULT_SPEC if _DEFAULT_SPEC.exists() else None), words


def _progress(check: str) -> None:
    """Say on a terminal what has just been checked; "" wipes it away."""
    if sys.stderr.isatty():
        text = f"checked: {check}" if check else ""
        click.echo(f"\r{text:40}\r", nl=False, err=True)
