"""Starts an agent: who am I, where do I write, by what way do I reach the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

from hpcprof.artifacts import node_records, run_record
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import HpcprofError
from hpcprof.launch.agent import mpi_child
from hpcprof.launch.agent.ending import Ending
from hpcprof.launch.agent.journal import Journal
from hpcprof.launch.agent.life import Life, Setting
from hpcprof.launch.agent.mpi import MpiTransport
from hpcprof.launch.agent.sampling import Sampling
from hpcprof.launch.agent.transport import NoTransport, Transport
from hpcprof.launch.agent.udp import UdpTransport
from hpcprof.launch.signals import SignalInbox


class Request(NamedTuple):
    """What the command line asked for. None: as the run's record says."""

    run_dir: str | None
    transport: str
    interval_s: float | None
    sample_s: float
    data_dir: str | None
    environ: Mapping[str, str]


class _Scene(NamedTuple):
    request: Request
    setting: Setting
    data_dir: str | None


def run_agent(request: Request) -> None:
    """Run the agent of this node to its end. Returns at once when none is wanted.

    Raises HpcprofError when it cannot know who or where it is.
    """
    if not request.run_dir:
        raise HpcprofError("no run folder: give --run-dir, or set HPCPROF_RUN_DIR")
    paths = ArtifactPaths(Path(request.run_dir).absolute())
    settings, problem = _settings(paths)
    if settings["agent"] == "none":
        return
    identity = RankEnv.from_environ(request.environ)
    os.umask(0o077)
    setting = Setting(paths, identity, request.interval_s or float(settings["agent_interval_s"]))
    inbox = SignalInbox()  # before any thread: all of them inherit that signals wait
    scene = _Scene(request, setting, request.data_dir or settings["data_dir"])
    notes = [problem] if problem else []
    if identity.world_size == 1:
        _live(scene, notes, Ending(inbox), _alone)
        return
    if _wants_mpi(request, notes):
        outcome = mpi_child.run(lambda started: _live_with_mpi(scene, notes, started), inbox)
        if outcome.how == mpi_child.ENDED:
            return
        why = f" ({outcome.reason})" if outcome.reason else ""
        if outcome.how == mpi_child.BROKE_OFF:
            notes.append(
                f"the connection by MPI broke off{why}; from here on there are samples only"
            )
            _live(scene, notes, Ending(inbox), _alone)
            return
        notes.append(f"MPI did not start{why}; the agents talk over UDP and TCP")
    _live(scene, notes, Ending(inbox), _udp)


def _settings(paths: ArtifactPaths) -> tuple[dict[str, Any], str]:
    """Launch settings and what was wrong with them, "" if nothing."""
    try:
        return run_record.launch_settings(paths.run_json), ""
    except HpcprofError as error:
        return dict(run_record.LAUNCH_DEFAULTS), f"{error}; the defaults are used"


def _wants_mpi(request: Request, notes: list[str]) -> bool:
    if request.transport == node_records.UDP:
        return False
    is_possible = mpi_child.is_possible(request.environ)
    if request.transport == node_records.MPI and not is_possible:
        notes.append("no MPI: mpi4py is missing, or the step was started without --mpi=")
    return is_possible


_Connect = Callable[[Setting, Journal], Transport]


def _alone(setting: Setting, journal: Journal) -> Transport:
    return NoTransport(setting.identity.rank, setting.identity.node)


def _udp(setting: Setting, journal: Journal) -> Transport:
    identity = setting.identity
    try:
        return UdpTransport(setting.paths, identity.rank, identity.node)
    except OSError as error:
        journal.note(f"cannot be found by other nodes: {error.strerror}")
        return _alone(setting, journal)


def _live_with_mpi(scene: _Scene, notes: list[str], started: Callable[[], None]) -> None:
    """Body of the child. Before ``started`` nothing is written: the parent may begin anew."""
    identity = scene.setting.identity
    transport = MpiTransport.start(
        identity.rank, identity.world_size, identity.node, mpi_child.START_SECONDS / 2
    )
    started()
    # its thread starts after MPI_Init, which shall see a process of one thread
    ending = Ending(SignalInbox())
    _live(scene, notes, ending, lambda setting, journal: transport)


def _live(scene: _Scene, notes: list[str], ending: Ending, connect: _Connect) -> None:
    journal = Journal(scene.setting.paths, scene.setting.identity.node)
    for text in notes:
        journal.note(text)
    transport = connect(scene.setting, journal)
    if not journal.is_writable and transport.name != node_records.MPI:
        return  # over MPI the others still need our answers, and MPI_Finalize our presence
    sampling = Sampling(scene.setting, journal, ending.stop, scene.request.sample_s)
    sampling.start(scene.data_dir)
    Life(scene.setting, journal, transport, ending).live()
    sampling.finish(seconds=1.0)
    transport.close()
