"""Everything that was computed about one run; the only thing findings may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcprof.align.node_clock import NodeClock
from hpcprof.analyses.busy_steps import BusySteps
from hpcprof.analyses.causes import Cause
from hpcprof.analyses.hangs import HangEpisode
from hpcprof.analyses.horovod_phases import HorovodPhases
from hpcprof.analyses.interconnect import Interconnect
from hpcprof.analyses.memory_split import MemorySplit
from hpcprof.analyses.node_reads import NodeReads
from hpcprof.analyses.op_phases import NamedWindows, OpPhases
from hpcprof.analyses.phase_times import PhaseTimes
from hpcprof.analyses.profiler_overhead import ProfilerOverhead
from hpcprof.analyses.stragglers import Stragglers
from hpcprof.trace.model import JobInfo, RankInfo


@dataclass(frozen=True)
class JobEnd:
    """How Slurm says the job ended: ``state`` as sacct has it, for example TIMEOUT."""

    state: str
    exit_code: str
    elapsed_s: int | None
    limit_s: int | None


AUTO, NONE = "auto", "none"  # what a job script may be told about the agent


@dataclass(frozen=True)
class AgentNote:
    """Something that agents did not measure, or that went wrong there, on these nodes."""

    nodes: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class NodeAgents:
    """What became of the node agents.

    ``setting``: AUTO or NONE as the job was told; "" for a run that no job script of ours started
    (``hpcprof launch --ranks``), which has no agents. ``absent``: nodes on which ranks ran and no
    agent left a record. ``log_end``: one line of what agents and their srun printed last.
    """

    setting: str = ""
    absent: tuple[str, ...] = ()
    log_end: str = ""
    notes: tuple[AgentNote, ...] = ()


@dataclass(frozen=True)
class RunResults:
    """Results of one run.

    ``ranks``: every rank that left a trace; ``missing`` those of the job that left none.
    ``causes[i]`` belongs to ``stragglers.found[i]``. ``collective_form``: arrivals.PROFILER,
    MARKED or NONE. ``payload_bytes``: allreduce bytes per step and rank, None when unknown.
    ``has_device_activity``: whether any GPU kernel was recorded. ``job_end`` is None when nobody
    could be asked. ``interconnect`` and ``reads`` (of the data set, by the agents) are without any
    number where nothing was measured. ``transfer_form``: like ``collective_form``, of the
    collectives by which the transfer was judged; "" says that it is the same. ``busy``: steps left
    out because a profiler was at work. ``overhead`` is that of nsys; ``naming_overhead`` that of
    what named operations: "nvtx" and "tf_profiler", where they were at work (``named``).
    ``memory``: rank → one per allocator, of the ranks whose memory tf.profiler watched.
    """

    job: JobInfo
    ranks: tuple[RankInfo, ...]
    missing: tuple[int, ...]
    clocks: Mapping[str, NodeClock]
    collective_form: str
    payload_bytes: int | None
    has_device_activity: bool
    stragglers: Stragglers
    causes: tuple[Cause, ...]
    phase_times: PhaseTimes
    left_out: tuple[int, ...]
    job_end: JobEnd | None
    horovod: HorovodPhases | None = None
    interconnect: Interconnect = field(default_factory=Interconnect)
    reads: NodeReads = field(default_factory=NodeReads)
    agents: NodeAgents = field(default_factory=NodeAgents)
    transfer_form: str = ""
    busy: BusySteps = field(default_factory=BusySteps)
    overhead: ProfilerOverhead = field(default_factory=ProfilerOverhead)
    hangs: tuple[HangEpisode, ...] = ()
    op_phases: OpPhases = field(default_factory=OpPhases)
    named: NamedWindows = field(default_factory=NamedWindows)
    naming_overhead: Mapping[str, ProfilerOverhead] = field(default_factory=dict)
    memory: Mapping[int, tuple[MemorySplit, ...]] = field(default_factory=dict)
