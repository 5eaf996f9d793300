"""What the node agents of a run left, and what they did not.

A job without an agent is normal, and an agent that failed harms nothing; but what was therefore not
measured is written down here, for the report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from hpcprof.analyses.run_results import AUTO, AgentNote, NodeAgents
from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.run_record import LAUNCH_DEFAULTS, launch_settings
from hpcprof.errors import InputError
from hpcprof.readers.agent_files import (
    DURATION_NS,
    WARNINGS,
    ClockFile,
    read_exchanges,
    read_links,
    read_samples,
)
from hpcprof.trace.columns import AFTER_NS, RECEIVED_NS, START_NS, TIME_NS
from hpcprof.units import duration

_QUOTED = 200  # characters of what somebody else wrote
_TAIL_BYTES = 64 * 1024
_UNPRINTABLE_RE = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\ud800-\udfff]+")
# without an end record the last reading is up to one interval old, and one may have failed
_EARLY_INTERVALS = 2
_EARLY_SLACK_NS = 10_000_000_000


@dataclass
class AgentRecords:
    """What the node agents left, by node; nodes without an agent are absent.

    ``links``: rows of all nodes, ``samples``: on the clock of their node; see
    ``readers.agent_files``. ``reference``: the node whose clock the others pinged, None when no
    agent left a reading. ``outcome``: what they did not measure.
    """

    reference: str | None = None
    exchanges: dict[str, pd.DataFrame] = field(default_factory=dict)
    walls: dict[str, pd.DataFrame] = field(default_factory=dict)
    links: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: dict[str, pd.DataFrame] = field(default_factory=dict)
    outcome: NodeAgents = field(default_factory=NodeAgents)


@dataclass(frozen=True)
class _NodeFiles:
    """The files of one node; ``samples`` is None when they cannot be used."""

    clock: ClockFile
    links: pd.DataFrame
    samples: pd.DataFrame | None

    @property
    def is_empty(self) -> bool:
        """Whether no agent has written anything that could be read."""
        return self.clock.transport is None and not len(self.links) and not self._has_samples

    @property
    def _has_samples(self) -> bool:
        return self.samples is not None and len(self.samples) > 0


def read_agents(paths: ArtifactPaths, trained_until_ns: Mapping[str, int]) -> AgentRecords:
    """Everything the agents of a run left. What cannot be used is told in the notes.

    ``trained_until_ns``: each node on which ranks ran, with the end of their last span on its
    clock.
    """
    setting, interval_ns = _launched(paths)
    agents, notes = AgentRecords(), _Notes()
    links, has_left = [], set()
    for node in paths.node_names():
        try:
            files = _read_node(paths, node, notes)
        except InputError as error:
            notes.add(node, str(error))
            has_left.add(node)
            continue
        if not files.is_empty:
            has_left.add(node)
        links.append(files.links)
        _keep(agents, files)
        end_ns = trained_until_ns.get(node, 0)
        limit_ns = _EARLY_INTERVALS * interval_ns + _EARLY_SLACK_NS
        for text in _ended_early(files, end_ns, limit_ns, len(trained_until_ns)):
            notes.add(node, text)
    if links:
        agents.links = pd.concat(links, ignore_index=True)
    absent = tuple(sorted(set(trained_until_ns) - has_left))
    agents.outcome = NodeAgents(setting, absent, _log_end(paths, absent), notes.grouped())
    return agents


def _keep(agents: AgentRecords, files: _NodeFiles) -> None:
    clock = files.clock
    agents.walls[clock.node] = clock.walls
    if files.samples is not None:
        agents.samples[clock.node] = files.samples
    if len(clock.exchanges):
        agents.reference = clock.reference
        agents.exchanges[clock.node] = clock.exchanges


def _launched(paths: ArtifactPaths) -> tuple[str, int]:
    """What the job was told about the agent, see NodeAgents, and the ns between its readings."""
    interval_s = LAUNCH_DEFAULTS["agent_interval_s"]
    try:
        # local launch writes an empty spec
        has_script = bool(read_json(paths.run_json, "the run's record").get("spec"))
        settings = launch_settings(paths.run_json)
    except InputError:  # only a job script makes the folder
        return (AUTO if paths.nodes.is_dir() else ""), interval_s * 10**9
    given = settings["agent_interval_s"]
    interval_s = given if isinstance(given, (int, float)) else interval_s
    return (str(settings["agent"]) if has_script else ""), int(interval_s * 10**9)


def _read_node(paths: ArtifactPaths, node: str, notes: _Notes) -> _NodeFiles:
    """The files of one node. Raises InputError when they are not of this node or version."""
    clock = read_exchanges(paths, node)
    links = read_links(paths, node)
    # samples do not say whose they are, so clock.jsonl must have been seen to be of this node
    samples = None
    try:
        samples = read_samples(paths, node)
    except InputError as error:
        notes.add(node, str(error))
    files = _NodeFiles(clock, links, samples)
    if not paths.node_clock(node).exists() and files.is_empty:
        return files  # nothing at all, which is said of the node as a whole
    if clock.transport is None and not files.is_empty and paths.node_clock(node).exists():
        notes.add(node, "clock.jsonl does not say who wrote it; clock and links are not known")
    for text in clock.notes:
        notes.add(node, _one_line(text))
    tables = [table for table in (links, samples) if table is not None]
    for text in (*clock.warnings, *(text for table in tables for text in table.attrs[WARNINGS])):
        notes.add(node, text)
    return files


def _ended_early(files: _NodeFiles, end_ns: int, limit_ns: int, nodes: int) -> list[str]:
    """What was not measured up to the end of the training, because the agent was gone."""
    clock, samples = files.clock, files.samples
    compared = clock.exchanges[RECEIVED_NS] if len(clock.exchanges) else clock.walls[AFTER_NS]
    times = [compared, clock.walls[AFTER_NS], files.links[START_NS] + files.links[DURATION_NS]]
    times += [] if samples is None else [samples[TIME_NS]]
    last_ns = max((int(column.max()) for column in times if len(column)), default=0)
    if last_ns and end_ns - last_ns > limit_ns:
        lost = "counters and test reads were not measured"
        if nodes > 1:
            whose = "the other clocks are" if clock.node == clock.reference else "the clock is"
            lost = f"{whose} extrapolated, and links, {lost}"
        record = "" if clock.ended else ", without an end record"
        before = duration(end_ns - last_ns)
        return [f"ended {before} before the training{record}; from there on {lost}"]
    compared_ns = int(compared.max()) if len(compared) else 0
    if nodes > 1 and compared_ns and end_ns - compared_ns > limit_ns:
        return [
            f"read the clocks for the last time {duration(end_ns - compared_ns)} before the "
            "training ended; they are extrapolated from there"
        ]
    return []


def _log_end(paths: ArtifactPaths, absent: tuple[str, ...]) -> str:
    """The last line of the agents' log that names one of these nodes, else the last line."""
    if not absent:
        return ""
    try:
        with open(paths.agent_log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for line in map(_one_line, text.split("\n")) if line]
    name_re = re.compile(rf"\b(?:{'|'.join(map(re.escape, absent))})\b")
    naming = [line for line in lines if name_re.search(line)]
    return next(reversed(naming or lines), "")


def _one_line(text: str) -> str:
    """Printable, on one line, not long: it was written by a program that met trouble."""
    line = _UNPRINTABLE_RE.sub(" ", text).strip()
    return line if len(line) <= _QUOTED else line[: _QUOTED - 1] + "…"


class _Notes:
    """Notes of all nodes; equal ones are kept once."""

    def __init__(self) -> None:
        self._nodes_of: dict[str, list[str]] = {}

    def add(self, node: str, text: str) -> None:
        nodes = self._nodes_of.setdefault(text.removeprefix(f"node {node}: "), [])
        if node not in nodes:
            nodes.append(node)

    def grouped(self) -> tuple[AgentNote, ...]:
        """Those of most nodes first."""
        notes = [AgentNote(tuple(nodes), text) for text, nodes in self._nodes_of.items()]
        return tuple(sorted(notes, key=lambda note: -len(note.nodes)))
