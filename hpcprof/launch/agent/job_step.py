"""The agents' job step, from the batch node: starts it, and once more where MPI has taken it down.

Where MPI crashes as it starts, Slurm's PMIx plug-in ends the whole step, and no agent is left that
could go on without (seen with Slurm 22.05 and Open MPI 4.1, in one job of six). The training has a
step of its own and does not notice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Mapping, Sequence

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.agent.ending import ASKED_TO_END
from hpcprof.launch.agent.journal import say
from hpcprof.launch.processes import Program, reap, send, spawn
from hpcprof.launch.signals import SignalInbox

_AGENT = (sys.executable, "-I", "-m", "hpcprof", "agent")


def start(srun: Sequence[str], run_dir: str | None, environ: Mapping[str, str]) -> None:
    """Run the agents by ``srun``, a command without its program, until they have ended.

    Signals are passed on. A step that fails before it was asked to end is started a second time,
    over UDP and TCP. Raises nothing of the agents' own.
    """
    inbox = SignalInbox()
    code, asked = _run([*srun, *_AGENT], environ, inbox)
    if code == 0 or asked:
        return
    say(f"their job step ended with code {code}; the agents are started again, over UDP and TCP")
    if run_dir:
        _forget_addresses(ArtifactPaths(Path(run_dir).absolute()))
    _run([*srun, "--mpi=none", *_AGENT, "--transport=udp"], environ, inbox)


def _run(argv: Sequence[str], environ: Mapping[str, str], inbox: SignalInbox) -> tuple[int, bool]:
    """The exit code of the step, and whether it was asked to end."""
    umask = os.umask(0)
    os.umask(umask)
    pid = spawn(Program(argv, environ, umask), inbox)
    asked = False
    while True:
        fate = reap(pid)
        if fate is not None:
            return fate.code, asked
        received = inbox.wait(1.0)
        if received is not None:
            asked = asked or received.signum in ASKED_TO_END
            send(pid, received.signum)


def _forget_addresses(paths: ArtifactPaths) -> None:
    """Those of agents that are gone: the next ones would wait for their answers."""
    for node in paths.node_names():
        with contextlib.suppress(OSError):
            paths.node_address(node).unlink()
