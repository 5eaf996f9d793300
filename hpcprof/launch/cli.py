"""``hpcprof launch``: argparse only, because click is not needed on the way to the training."""

from __future__ import annotations

import argparse
import os
from typing import Sequence

from hpcprof.artifacts import rank_env
from hpcprof.errors import HpcprofError
from hpcprof.launch.arguments import new_parser
from hpcprof.launch.processes import say
from hpcprof.launch.signals import die_by

_DESCRIPTION = """\
Run the training of one rank and record it: inside srun or mpirun, in front of the command.
With --ranks N: start N ranks of it on this machine.

The exit code is the training's own. Whatever hpcprof cannot do, the training runs."""


def main(argv: Sequence[str]) -> int:
    """Serve ``hpcprof launch``; returns the training's exit code, or 2 for a wrong request."""
    arguments = _parser().parse_args(argv)
    command = arguments.command
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        say("no command: hpcprof launch [options] -- COMMAND")
        return 2
    if arguments.ranks is not None:
        return _local(arguments, command)
    from hpcprof.launch.rank import Request, run_rank

    environ = dict(os.environ)
    run_dir = arguments.run_dir or environ.get(rank_env.RUN_DIR)
    fate = run_rank(Request(command, run_dir, arguments.profiler, environ))
    if fate.signum:
        die_by(fate.signum)
    return int(fate.code)


def _local(arguments: argparse.Namespace, command: list[str]) -> int:
    from hpcprof.launch.local import run_local

    try:
        run_dir, code = run_local(
            command,
            ranks=arguments.ranks,
            run_dir=arguments.run_dir,
            name=arguments.name,
            strategy=arguments.strategy,
            profiler=arguments.profiler or "auto",
        )
    except HpcprofError as error:
        say(str(error))
        return error.exit_code
    print(f"run folder: {run_dir}", flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("launch", _DESCRIPTION)
    parser.add_argument("--run-dir", metavar="DIR", help="run folder (default: $HPCPROF_RUN_DIR)")
    parser.add_argument(
        "--profiler",
        choices=("auto", "nsys", "none"),
        help="auto: nsys where it is found (default: as run.json says, else auto)",
    )
    local = parser.add_argument_group("on this machine, without Slurm")
    local.add_argument("--ranks", type=_positive, metavar="N", help="start N ranks here")
    local.add_argument("--name", metavar="NAME", help="of the run (default: the command's)")
    local.add_argument(
        "--strategy",
        choices=("horovod", "mirrored", "multiworker", "custom"),
        default="custom",
        help="multiworker: set TF_CONFIG for MultiWorkerMirroredStrategy (default: custom)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
