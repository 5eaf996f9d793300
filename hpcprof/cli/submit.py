"""``hpcprof submit``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcprof.submit import submission
from hpcprof.submit.submission import Submission


@click.command()
@click.argument("spec")
def submit(spec: str) -> None:
    """Submit a spec, and its analysis after it.

    SPEC is a job spec as hpcprof init writes it. The analysis is a job of its own that starts when
    the training has ended, however it ended.
    """
    done = submission.submit(Path(spec))
    click.echo(_summary(done))
    if done.collect_problem:
        click.echo(
            f"hpcprof: the training is submitted, but not its analysis: {done.collect_problem}\n"
            f"When job {done.job_id} has ended: hpcprof collect {shlex.quote(str(done.run_dir))}",
            err=True,
        )


def _summary(done: Submission) -> str:
    run_dir = shlex.quote(str(done.run_dir))
    lines = [f"job         {done.job_id}", f"run folder  {done.run_dir}", f"log         {done.log}"]
    if done.collect_id:
        lines += [
            f"analysis    job {done.collect_id}, log {done.collect_log}",
            f"verdict     hpcprof report {run_dir}   when job {done.collect_id} ends",
        ]
    return "\n".join(lines)
