"""Runs one job on the test cluster and switches faults on and off between its steps."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.readers.spans_reader import read_span_file
from hpcprof.trace import columns as c
from tests.cluster import training
from tests.cluster.clocks import ClockSkew, SkewedClocks
from tests.cluster.cluster import FINAL_STATES, Cluster

from . import plan
from .windows import Window

WARM_UP_STEPS = 12
# after a fault is switched, before the trial begins: what was under way still has the old speed
SETTLE_STEPS = 5
TRIAL_STEPS = 40
# a node's link is measured each time the agent reads the clocks, and a trial needs a few of those
AGENT_INTERVAL_S = 4
SLOW_SHARE = 0.21  # of a core, instead of training.CORE_SHARE
MB_PER_S = 0.6
MBIT_PER_S = 100


class SessionFailedError(Exception):
    """The job did not run as planned, so that its trials say nothing."""


class Faults:
    """Switches faults of one running training."""

    def __init__(self, job: training.Training, data: Path) -> None:
        self._job = job
        self._data = data
        self._shares = {rank: contextlib.ExitStack() for rank in range(training.RANKS)}

    @contextlib.contextmanager
    def usual(self) -> Iterator[None]:
        """Every rank has its usual share of a core inside the block."""
        try:
            for rank in self._shares:
                self._give(rank, training.CORE_SHARE)
            yield
        finally:
            for share in self._shares.values():
                share.close()

    def _give(self, rank: int, share: float) -> None:
        self._shares[rank].close()
        pids = [self._job.training_pid(rank)]
        self._shares[rank].enter_context(self._job.cluster.slow_cpu(pids=pids, quota=share))

    @contextlib.contextmanager
    def inject(self, trial: plan.Trial) -> Iterator[None]:
        """The fault of ``trial`` is there inside the block."""
        cluster = self._job.cluster
        with contextlib.ExitStack() as stack:
            if trial.fault in (plan.SLOW_RANK, plan.SLOW_NODE):
                for rank in trial.ranks:
                    self._give(rank, SLOW_SHARE)
                    stack.callback(self._give, rank, training.CORE_SHARE)
            elif trial.fault == plan.SLOW_FILES:
                stack.enter_context(cluster.slow_filesystem(trial.nodes[0], self._data, MB_PER_S))
            elif trial.fault == plan.SLOW_NETWORK:
                stack.enter_context(cluster.slow_network(trial.nodes[0], MBIT_PER_S))
            yield


@dataclass(frozen=True)
class Ran:
    """One job: its run folder, the steps of each trial, and the truth about the clocks.

    ``first_ns`` and ``last_ns``: the host's CLOCK_MONOTONIC when the training had begun and when
    the last trial was over.
    """

    run_dir: Path
    windows: list[Window]
    truth: SkewedClocks
    first_ns: int
    last_ns: int


def run_session(
    cluster: Cluster, session: plan.Session, folder: Path, python: Path, nsys: Path | None
) -> Ran:
    """Run the job and its trials.

    Raises SessionFailedError when the job ended before its last trial.
    """
    shutil.rmtree(folder, ignore_errors=True)
    skews = {
        node: ClockSkew(monotonic_ppb=ppb, realtime_offset_ns=offset)
        for node, (ppb, offset) in session.skews.items()
    }
    with cluster.skewed_clocks(skews) as clocks:
        job = training.submit(
            cluster,
            python,
            folder,
            nsys=nsys if session.profiled else None,
            collect=False,
            steps=WARM_UP_STEPS + len(session.trials) * (TRIAL_STEPS + 2 * SETTLE_STEPS + 10) + 10,
            options=[f"--prefetch={session.prefetch}"],
            nodes=session.nodes,
            env=clocks.env,
            spec={"time": "00:30:00", "profile": {"agent_interval_s": AGENT_INTERVAL_S}},
        )
        job.wait_for_step(1)
        first_ns = time.monotonic_ns()
        windows = _trials(job, session, folder / "data")
        last_ns = time.monotonic_ns()
        job.wait()
    return Ran(job.run_dir, windows, clocks, first_ns, last_ns)


def _trials(job: training.Training, session: plan.Session, data: Path) -> list[Window]:
    faults = Faults(job, data)
    windows = []
    with faults.usual():
        reached = wait_for_step(job, WARM_UP_STEPS)
        for trial in session.trials:
            with faults.inject(trial):
                first = wait_for_step(job, reached + SETTLE_STEPS)
                last = wait_for_step(job, first + TRIAL_STEPS)
                windows.append(Window(trial, first + 1, last - 1))
            reached = wait_for_step(job, last + SETTLE_STEPS)
    return windows


def wait_for_step(job: training.Training, step: int) -> int:
    """Until every rank has recorded ``step``; returns the last step that any rank has."""
    paths = ArtifactPaths(job.run_dir)
    deadline = time.monotonic() + training.JOB_TIMEOUT_S
    next_question = time.monotonic() + training.ASK_SLURM_S
    while True:
        steps = [_last_step(paths, rank) for rank in paths.rank_ids()]
        if len(steps) == training.RANKS and min(steps) >= step:
            return max(steps)
        is_over = False
        if time.monotonic() > next_question:
            next_question = time.monotonic() + training.ASK_SLURM_S
            is_over = job.cluster.job_state(job.job_id) in FINAL_STATES
        if is_over or time.monotonic() > deadline:
            raise SessionFailedError(f"step {step} was not reached:\n{job.output()}")
        time.sleep(0.5)


def _last_step(paths: ArtifactPaths, rank: int) -> int:
    try:
        spans = read_span_file(paths.spans(rank), rank).spans
    except InputError:
        return -1
    steps = spans.loc[spans[c.KIND] == c.STEP_KIND, c.STEP]
    return int(steps.max()) if len(steps) else -1
