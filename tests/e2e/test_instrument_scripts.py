"""Four unmodified trainings: their steps, phases and faults, and that they train as without us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcprof.readers import NsysTools, find_tools
from hpcprof.trace import Trace
from tests.e2e import instrumented
from tests.e2e.instrumented import FAULTS, FIRST, IN_GRAPH, LAST, STEPS, WINDOW, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STATISTICS_BYTES = 2**20
LOSS_BYTES = 4
LATE_MS = 60  # of the last rank, for the allreduce of the statistics
# both replicas share the processors; input slower than a slow step and the next cannot be hidden
READ_AHEAD_MS = 500
MIRRORED_FAULTS = {"input": READ_AHEAD_MS, "forward": 30, "backward": 50, "optimizer": 40}
# of the net in small_cnn: kernel and bias of four layers
GRADIENTS = 8
WEIGHTS = (27 * 16 + 16) + (144 * 32 + 32) + (32 * 13 * 13 * 64 + 64) + (64 * 10 + 10)


@dataclass(frozen=True)
class Script:
    """A training, the fixture of its Python, and what hpcprof should find of it."""

    file: str
    python: str
    ranks: int
    replicas: int
    steps_by: str
    faults: dict[str, float]


SCRIPTS = [
    Script("keras2_fit.py", "horovod_python", 2, 1, "keras", FAULTS),
    Script("keras3_fit.py", "keras3_python", 1, 1, "keras", FAULTS),
    Script("horovod_tape.py", "horovod_python", 2, 1, "loop", FAULTS | {"allreduce": LATE_MS}),
    Script("mirrored_loop.py", "keras3_python", 1, 2, "loop", MIRRORED_FAULTS),
]


@dataclass(frozen=True)
class Trained:
    """A script without hpcprof, with the recorder and with nsys; the last two with tf.profiler."""

    script: Script
    bare: Run
    recorder: Run
    nsys: Run
    recorder_trace: Trace
    nsys_trace: Trace

    @property
    def sources(self) -> list[tuple[str, Trace]]:
        """Where operations were named, and the trace that holds them."""
        by_recorder, by_nsys = self.recorder_trace, self.nsys_trace
        return [("recorder", by_recorder), ("tfprof", by_recorder), ("nsys", by_nsys)]


@pytest.fixture(scope="module", params=SCRIPTS, ids=lambda script: script.file[:-3])
def trained(
    request: pytest.FixtureRequest, nsys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    script: Script = request.param
    python: Path = request.getfixturevalue(script.python)
    folder = tmp_path_factory.mktemp(script.file[:-3])
    tools = find_tools(str(nsys))
    env = instrumented.slow(script.faults)
    window = {"op_steps": WINDOW, "tf_steps": WINDOW, "tf_ranks": "all"}
    bare = instrumented.bare(python, script.file, folder / "bare", env, ranks=script.ranks)

    def launch(name: str, **settings: object) -> Run:
        return instrumented.launched(
            python,
            script.file,
            folder / name,
            {**env, "TMPDIR": str(scratch)},
            ranks=script.ranks,
            profiler=name,
            **window,
            **settings,
        )

    scratch = folder / "t"
    scratch.mkdir()
    recorder = launch("none")
    with_nsys = launch("nsys", nsys_path=str(nsys), nsys_trace=["nvtx"])
    return Trained(
        script,
        bare,
        recorder,
        with_nsys,
        _traced(recorder, folder, tools),
        _traced(with_nsys, folder, tools),
    )


def _traced(run: Run, folder: Path, tools: NsysTools | None) -> Trace:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return run.trace(0, work, tools)


def test_it_trains_to_the_last_bit_as_without_hpcprof(trained: Trained) -> None:
    assert len(trained.bare.results) == trained.script.ranks
    assert trained.recorder.results == trained.bare.results
    assert trained.nsys.results == trained.bare.results


def test_every_step_is_counted_once(trained: Trained) -> None:
    for run in (trained.recorder, trained.nsys):
        for rank in range(trained.script.ranks):
            record = instrumented.training(run, rank)
            assert (record["steps"], record["steps_by"]) == (STEPS, trained.script.steps_by)
    assert instrumented.steps(trained.recorder_trace) == list(range(STEPS))
    assert instrumented.steps(trained.nsys_trace) == list(range(STEPS))


def test_what_the_hooks_saw_of_the_training_is_right(trained: Trained) -> None:
    record = instrumented.training(trained.recorder, 0)
    assert [state for state in record["hooks"].values() if state != "attached"] == []
    assert record["optimizer"]["class"].removeprefix("Distributed") in ("CarefulAdam", "Adam")
    weights = [each for each in record["variables"] if each["role"] == "weight"]
    assert sum(each["bytes"] for each in weights) == 4 * WEIGHTS
    assert record["op_steps"] == record["tf_steps"] == WINDOW
    assert record["input_not_separable"] is None
    assert record["phases_not_separable"] is None


def test_the_time_of_operations_is_in_phases(trained: Trained) -> None:
    for source, trace in trained.sources:
        found = instrumented.operations(trace, source)
        assert len(set(found["step"])) == LAST - FIRST + 1, source
        assert instrumented.share_in_phases(found) >= 0.98, source


@pytest.mark.parametrize("phase", IN_GRAPH)
def test_a_fault_in_the_graph_is_in_its_phase_with_its_size(trained: Trained, phase: str) -> None:
    for source, trace in trained.sources:
        for replica in range(trained.script.replicas):
            found = instrumented.operations(trace, source, replica)
            table = instrumented.per_step(found)
            told = (source, replica, instrumented.excess(table, phase))
            assert instrumented.is_size(table, phase, trained.script.faults[phase]), told


def test_slow_input_is_a_wait_of_that_size(trained: Trained) -> None:
    if trained.script.faults["input"] == READ_AHEAD_MS:
        pytest.skip("this training reads ahead")
    for trace in (trained.recorder_trace, trained.nsys_trace):
        table = instrumented.python_waits(trace)
        told = instrumented.excess(table, "input")
        assert instrumented.is_size(table, "input", FAULTS["input"]), told


def test_input_that_is_read_ahead_is_the_wait_that_remains(trained: Trained) -> None:
    if trained.script.faults["input"] != READ_AHEAD_MS:
        pytest.skip("this training reads nothing ahead")
    for run, trace in (
        (trained.recorder, trained.recorder_trace),
        (trained.nsys, trained.nsys_trace),
    ):
        seen = run.numbers("rank 0 waits ms ")[FIRST : LAST + 1]
        found = instrumented.python_waits(trace)["input"].tolist()
        assert sum(seen) > READ_AHEAD_MS
        assert found == pytest.approx(seen, rel=0.1, abs=1)


def test_the_sources_agree(trained: Trained) -> None:
    """tf.profiler saw the same steps of the same process as the recorder, and as nsys."""
    for source, trace in (("recorder", trained.recorder_trace), ("nsys", trained.nsys_trace)):
        for replica in range(trained.script.replicas):
            by_source, by_tf = (
                instrumented.per_step(instrumented.operations(trace, name, replica))
                for name in (source, "tfprof")
            )
            for phase in IN_GRAPH:
                # of each step: the machine may have been busy in one of them
                ratio = (by_source[phase] / by_tf[phase]).median()
                assert ratio == pytest.approx(1, abs=0.1), (source, replica, phase)


def test_every_gradient_of_every_step_is_a_collective(trained: Trained) -> None:
    if trained.script.ranks == 1:
        pytest.skip("this training has no Horovod")
    for trace in (trained.recorder_trace, trained.nsys_trace):
        found = instrumented.collectives(trace)
        gradients = found[~found["bytes"].isin((STATISTICS_BYTES, LOSS_BYTES))]
        per_step = gradients.groupby("step").size()
        # the first one also holds the broadcasts of the variables
        assert set(per_step.drop(0)) == {GRADIENTS}
        assert list(per_step.index) == list(range(STEPS))


def test_a_slow_allreduce_takes_longer_by_that_where_others_wait(trained: Trained) -> None:
    if "allreduce" not in trained.script.faults:
        pytest.skip("this training has no slow allreduce")
    for trace in (trained.recorder_trace, trained.nsys_trace):
        found = instrumented.collectives(trace)
        statistics = found[found["bytes"] == STATISTICS_BYTES].assign(phase="allreduce")
        assert statistics["step"].tolist() == list(range(STEPS))
        table = instrumented.per_step(statistics)
        told = instrumented.excess(table, "allreduce")
        assert instrumented.is_size(table, "allreduce", LATE_MS), told
