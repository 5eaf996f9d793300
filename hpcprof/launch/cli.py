"""``hpcprof launch``: argparse only, because click is not needed on the way to the training."""

from __future__ import annotations

import argparse
import os
from typing import Any, Sequence

from hpcprof.artifacts import rank_env
from hpcprof.errors import HpcprofError
from hpcprof.launch.arguments import new_parser
from hpcprof.launch.processes import say
from hpcprof.launch.signals import die_by

# options that are settings of launch, too
_SETTINGS = ("profiler", "hooks", "op_steps", "tf_ranks", "tf_steps", "recorder")

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
    fate = run_rank(Request(command, run_dir, environ, _settings(arguments)))
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
            settings=_settings(arguments),
        )
    except HpcprofError as error:
        say(str(error))
        return error.exit_code
    print(f"run folder: {run_dir}", flush=True)
    return code


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings of launch that the command line gives, by their names in run.json."""
    given = {name: getattr(arguments, name) for name in _SETTINGS}
    return {name: value for name, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("launch", _DESCRIPTION)
    parser.add_argument("--run-dir", metavar="DIR", help="run folder (default: $HPCPROF_RUN_DIR)")
    parser.add_argument(
        "--profiler",
        choices=("auto", "nsys", "none"),
        help="auto: nsys where it is found (default: as run.json says, else auto)",
    )
    _add_instruments(parser.add_argument_group("what the training records by itself"))
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


def _add_instruments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-hooks",
        dest="hooks",
        action="store_const",
        const=False,
        help="leave TensorFlow, Keras and Horovod as they are; only calls of annotate are recorded",
    )
    group.add_argument(
        "--op-steps",
        type=_steps_or_none,
        metavar="A-B|none",
        help="steps in which TensorFlow names each of its operations (default: 10-29)",
    )
    group.add_argument(
        "--tf-profiler",
        dest="tf_ranks",
        metavar="RANKS",
        help="ranks that tf.profiler records: all, 0, 0-3, local0, node:NAME (default: none)",
    )
    group.add_argument(
        "--tf-steps", type=_steps, metavar="A-B", help="steps that it records (default: 30-39)"
    )
    group.add_argument(
        "--recorder",
        choices=("auto", "none"),
        help="our own recorder of NVTX ranges; auto: on ranks without nsys",
    )


def _steps(text: str) -> str:
    from hpcprof.artifacts.step_range import StepRange

    try:
        return str(StepRange.from_text(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _steps_or_none(text: str) -> str:
    return text if text == "none" else _steps(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
