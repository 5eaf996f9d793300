"""The command ``hpcprof``: finds the verb, and turns errors into a message and an exit code.

0 done; 1 findings at or above a level; 2 the request is wrong; 3 input is missing or unreadable;
4 the environment lacks something. A verb is imported when it is called, so ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from hpcprof import __version__
from hpcprof.errors import EnvironmentLacksError, HpcprofError


class Verb(NamedTuple):
    """Name as typed, module and function that hold its command, and its line in ``--help``."""

    name: str
    module: str
    function: str
    summary: str


# in the order of work; the summary is the first line of the command's docstring
VERBS = (
    Verb("init", "hpcprof.cli.init", "init", "Write a commented job spec to begin with."),
    Verb("generate", "hpcprof.cli.generate", "generate", "Show the job script of a spec."),
    Verb("submit", "hpcprof.cli.submit", "submit", "Submit a spec, and its analysis after it."),
    Verb(
        "collect",
        "hpcprof.cli.collect",
        "collect",
        "Read what a job recorded, judge it and print the verdict.",
    ),
    Verb(
        "report",
        "hpcprof.cli.report",
        "report",
        "Print the verdict of a collected run again; computes nothing.",
    ),
    Verb(
        "doctor",
        "hpcprof.cli.doctor",
        "doctor",
        "Check whether this machine or cluster can run and record a training.",
    ),
    Verb(
        "demo",
        "hpcprof.cli.demo",
        "demo",
        "Train a small model on this machine, slow one rank's input, and see it found.",
    ),
)


# served by __main__ before click is imported; each has its own --help
IN_JOB_VERBS = (
    ("launch", "Run one rank of a training and record it, or local ranks (--ranks N)."),
    ("flush", "End the recordings of this node and write them, while the training goes on."),
    ("agent", "Compare clocks and sample counters of a node beside the training."),
    ("workload", "Train a small model with synthetic data."),
)


class _VerbGroup(click.Group):
    """A click group that knows its verbs by name and imports one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = next((verb for verb in VERBS if verb.name == cmd_name), None)
        if verb is None:
            return None
        try:
            module = importlib.import_module(verb.module)
        except ModuleNotFoundError as error:
            raise EnvironmentLacksError(
                f"hpcprof {verb.name} needs the Python package {error.name}, which is not "
                f"installed for {sys.executable}. Install hpcprof again with its dependencies."
            ) from error
        command: click.Command = getattr(module, verb.function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb.name, verb.summary) for verb in VERBS])
        with formatter.section("Verbs inside a job"):
            formatter.write_dl(IN_JOB_VERBS)


@click.command(
    cls=_VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="hpcprof", message="%(prog)s %(version)s")
def hpcprof() -> None:
    """Why is my multi-GPU training slow, on which rank and node, and what would fixing it buy?"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. ``argv`` without the program's name."""
    try:
        result: Any = hpcprof.main(argv, prog_name="hpcprof", standalone_mode=False)
    except HpcprofError as error:
        print(f"hpcprof: {error}", file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        # click's own code for the others is 1, which here means findings
        return 2 if isinstance(error, click.UsageError) else HpcprofError.exit_code
    except click.Abort:
        return 130  # as shells report Ctrl-C
    except OSError as error:
        print(f"hpcprof: {error}", file=sys.stderr)
        return HpcprofError.exit_code
    # a verb returns None, or an exit code of its own; click passes on that of ctx.exit()
    return result if isinstance(result, int) else 0
