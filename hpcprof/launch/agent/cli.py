"""``hpcprof agent``: argparse only, as ``hpcprof launch``."""

from __future__ import annotations

import argparse
import os
from typing import Sequence

from hpcprof.artifacts import node_records, rank_env
from hpcprof.errors import HpcprofError
from hpcprof.launch.agent.journal import say
from hpcprof.launch.arguments import new_parser

_DESCRIPTION = """\
Run beside the training, one task per node: compare the nodes' clocks, measure the links between
them and sample each node's counters. The job script starts it and ends it with SIGUSR2;
SIGTERM does too.

The exit code is 0 whatever fails: it must not fail the job."""


def main(argv: Sequence[str]) -> int:
    """Serve ``hpcprof agent``; returns 0, or 2 for a wrong request."""
    arguments = _parser().parse_args(argv)
    environ = dict(os.environ)
    if arguments.start:
        from hpcprof.launch.agent.job_step import start

        start(arguments.start, arguments.run_dir or environ.get(rank_env.RUN_DIR), environ)
        return 0
    try:
        # imported here: a part that cannot be imported must not fail the job either
        from hpcprof.launch.agent.start import Request, run_agent

        run_agent(
            Request(
                run_dir=arguments.run_dir or environ.get(rank_env.RUN_DIR),
                transport=arguments.transport,
                interval_s=arguments.interval_s,
                sample_s=arguments.sample_s,
                data_dir=arguments.data_dir,
                environ=environ,
            )
        )
    except HpcprofError as error:
        say(f"{error}. The agent ends.")
    except Exception as error:  # whatever it is: the job goes on
        say(f"{type(error).__name__}: {error}. The agent ends.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("agent", _DESCRIPTION)
    parser.add_argument("--run-dir", metavar="DIR", help="run folder (default: $HPCPROF_RUN_DIR)")
    parser.add_argument(
        "--transport",
        choices=("auto", node_records.MPI, node_records.UDP),
        default="auto",
        help="auto: MPI where mpi4py and the step allow it, else UDP and TCP (default: auto)",
    )
    parser.add_argument(
        "--interval-s",
        type=_seconds,
        metavar="S",
        help="between measurements of clocks and links (default: as the job spec says, 30)",
    )
    parser.add_argument(
        "--sample-s",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="between samples; rarer in long jobs",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the data set is (default: as the job spec says)"
    )
    parser.add_argument(
        "--start",
        nargs=argparse.REMAINDER,
        metavar="SRUN",
        help="for the job script: start the agents by this command and see to it that they run",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds
