"""Rules about the training as a whole and the profiler's cost: each fires, and each stays quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.analyses import arrivals, hangs
from hpcprof.analyses.busy_steps import BusySteps
from hpcprof.analyses.hangs import HangEpisode
from hpcprof.analyses.profiler_overhead import ProfilerOverhead
from hpcprof.artifacts import manifest
from hpcprof.findings import find
from hpcprof.trace.model import Gpu, SourceState
from tests.unit.results_builder import rank_info, results

pytestmark = pytest.mark.unit

HANG = HangEpisode(
    ranks=(0, 1, 2, 3),
    with_stacks=(0, 1, 2, 3),
    step=57,
    seconds=610.0,
    went_on=True,
    behind=(2,),
    told_by=hangs.ARRIVAL,
)


def of(run, rule):
    return [finding for finding in find(run) if finding.rule == rule]


def with_ranks(run, **fields):
    """The run with these fields on every rank; a callable gets the rank's number."""
    return replace(
        run,
        ranks=tuple(
            replace(info, **{k: v(info.rank) if callable(v) else v for k, v in fields.items()})
            for info in run.ranks
        ),
    )


def test_a_hang_after_which_the_training_went_on_is_a_warning_with_the_late_rank():
    (found,) = of(results(hangs=(HANG,)), "training-hung")
    assert (found.level, found.status, found.ranks, found.nodes) == (
        *("warn", "ok"),
        *((2,), ("node1",)),
    )
    assert found.message == (
        "no step for 10 min after step 57 on ranks 0-3; the training went on afterwards; rank 2 "
        "(node node1) came to the next allreduce that much later than the others"
    )
    assert found.evidence == (
        "stacks in ranks/00002/stacks.txt, ranks/00000/stacks.txt, ranks/00001/stacks.txt, "
        "ranks/00003/stacks.txt",
    )


def test_a_hang_that_was_the_end_is_critical():
    run = results(hangs=(replace(HANG, went_on=False, told_by=hangs.RECORDS),))
    (found,) = of(with_ranks(run, exit_code=143), "training-hung")
    assert found.level == "critical"
    assert found.message == (
        "no step for 10 min after step 57 on ranks 0-3, and none came any more; rank 2 "
        "(node node1) had not ended step 57 when others had"
    )


def test_a_training_that_ended_by_itself_after_its_last_step_is_no_catastrophe():
    last = replace(HANG, went_on=False, behind=(), told_by=hangs.UNKNOWN)
    (found,) = of(results(hangs=(last,)), "training-hung")
    assert found.level == "warn"
    assert "; the training ended by itself without another step; which rank" in found.message


@pytest.mark.parametrize(
    ("told_by", "words"),
    [
        (hangs.ALL_ARRIVED, "all ranks had come to the allreduce: it took that long itself"),
        (hangs.ALL_LATE, "no rank waited for another: all were that late at the next allreduce"),
        (
            hangs.UNKNOWN,
            "which rank was missing, if any, cannot be told from what was recorded",
        ),
    ],
)
def test_where_nobody_can_be_named_nobody_is(told_by, words):
    (found,) = of(results(hangs=(replace(HANG, behind=(), told_by=told_by),)), "training-hung")
    assert found.message.endswith(words)
    assert found.ranks == (0, 1, 2, 3)


def test_a_run_whose_steps_are_not_marked_does_not_say_how_it_went_on():
    unmarked = replace(HANG, step=None, went_on=None, behind=(), told_by=hangs.UNKNOWN)
    (found,) = of(with_ranks(results(hangs=(unmarked,)), exit_code=1), "training-hung")
    assert (found.level, found.steps) == ("warn", None)
    assert found.message.startswith(
        "no step for 10 min before the first step ended on ranks 0-3; whether the training went on "
        "is not known, as no step was recorded from there on"
    )


def test_ranks_that_could_not_write_their_stacks_are_told():
    (found,) = of(results(hangs=(replace(HANG, with_stacks=(1, 3)),)), "training-hung")
    assert found.evidence == (
        "stacks in ranks/00001/stacks.txt, ranks/00003/stacks.txt",
        "ranks 0, 2 could not say anything (a thread kept Python's lock); the manifest has what "
        "the kernel tells of the threads",
    )


def test_of_many_hangs_the_worst_are_told_and_the_others_counted():
    many = tuple(replace(HANG, step=step, seconds=600.0 + step) for step in range(5))
    fatal = replace(HANG, step=9, seconds=600.0, went_on=False)
    found = of(with_ranks(results(hangs=(*many, fatal)), exit_code=137), "training-hung")
    assert [f.level for f in found] == ["critical", "warn", "warn", "warn"]
    assert "after step 9" in found[0].message
    assert [f.message for f in found if "besides" in f.message] == [
        "3 shorter hangs besides; see hangs in quality.ranks of findings.json"
    ]


def test_a_run_without_hangs_has_no_such_finding():
    assert of(results(), "training-hung") == []


def test_ranks_that_train_alone_are_told_loudly():
    (found,) = of(with_ranks(results(), horovod_size=1), "horovod-size-mismatch")
    assert (found.level, found.ranks) == ("critical", (0, 1, 2, 3))
    assert found.message.startswith(
        "Horovod sees 1 rank where the job has 4: each rank trains its own model"
    )
    assert "srun --mpi=pmix" in found.advice


def test_groups_that_train_alone_are_told_by_size():
    run = with_ranks(results(), horovod_size=lambda rank: 1 if rank == 3 else 3)
    assert [(f.ranks, f.message[:44]) for f in of(run, "horovod-size-mismatch")] == [
        ((3,), "Horovod sees 1 rank where the job has 4: eac"),
        ((0, 1, 2), "Horovod sees 3 ranks where the job has 4: th"),
    ]


@pytest.mark.parametrize("size", [None, 4, 8])
def test_horovod_sizes_that_fit_or_are_unknown_are_no_finding(size):
    assert of(with_ranks(results(), horovod_size=size), "horovod-size-mismatch") == []


def test_a_job_record_that_asks_for_more_ranks_than_started_is_no_mismatch():
    run = with_ranks(results(), horovod_size=4)
    run = replace(run, job=replace(run.job, world_size=8))
    assert of(run, "horovod-size-mismatch") == []


def gpus(*uuids):
    return tuple(Gpu(i, uuid, "A100") for i, uuid in enumerate(uuids))


def test_two_ranks_that_see_one_gpu_only_share_it():
    run = with_ranks(results(), gpus=lambda rank: gpus("GPU-a" if rank < 2 else f"GPU-{rank}"))
    (found,) = of(run, "ranks-share-a-gpu")
    assert (found.level, found.ranks, found.nodes) == ("warn", (0, 1), ("node0",))
    assert found.message == (
        "ranks 0-1 (node node0) see one GPU only, and it is the same: A100 (GPU-a); if they train "
        "on a GPU they share it"
    )


@pytest.mark.parametrize(
    "seen",
    [
        lambda rank: gpus(f"GPU-{rank}"),
        # all GPUs of the node: which one a rank takes is its own choice
        lambda rank: gpus("GPU-a", "GPU-b"),
        lambda rank: gpus(None),
        lambda rank: (),
        lambda rank: None,
        # one of them is on another node
        lambda rank: gpus("GPU-a") if rank in (0, 2) else gpus(f"GPU-{rank}"),
    ],
)
def test_gpus_that_differ_or_are_not_certain_accuse_nobody(seen):
    assert of(with_ranks(results(), gpus=seen), "ranks-share-a-gpu") == []


def test_a_gpu_that_nobody_trains_on_is_not_shared():
    run = with_ranks(results(), gpus=gpus("GPU-a"))
    assert len(of(run, "ranks-share-a-gpu")) == 2  # one per node
    assert of(replace(run, has_device_activity=False), "ranks-share-a-gpu") == []
    other = replace(run, job=replace(run.job, strategy="multiworker"))
    assert of(other, "ranks-share-a-gpu") == []


COST = ProfilerOverhead(
    status="ok",
    overhead_frac=0.12,
    overhead_frac_ci=(0.09, 0.15),
    drift_frac=0.01,
    first_step=20,
    last_step=59,
    inside=38,
    each_side=15,
    by_rank={0: 0.12, 1: 0.12},
)


def test_a_profiler_that_lengthens_its_steps_is_told():
    (found,) = of(results(overhead=COST), "profiler-slows-training")
    assert (found.level, found.ranks, found.steps) == ("info", (0, 1), (20, 59))
    assert found.message == (
        "nsys made the steps it recorded (20-59) 12 % longer [9–15]; times within them are too "
        "long by that"
    )
    # two runs tell what it costs all the time; nothing in this one does
    assert found.advice.endswith(
        "what nsys costs outside the window was not measured (compare with a run with "
        "profile.profiler: none)"
    )
    much = replace(COST, overhead_frac=0.4, overhead_frac_ci=(0.3, 0.5))
    assert [f.level for f in of(results(overhead=much), "profiler-slows-training")] == ["warn"]


@pytest.mark.parametrize(
    "cost",
    [
        ProfilerOverhead(),
        replace(COST, overhead_frac_ci=(0.049, 0.2)),
        replace(COST, overhead_frac_ci=(-0.3, -0.2)),
        # the steps after the window are 10 % longer than those before: 4 % are left to the profiler
        replace(COST, drift_frac=0.1),
        replace(COST, drift_frac=-0.1),
        replace(COST, status="insufficient", reason="too few"),
    ],
)
def test_a_cost_that_is_small_unclear_or_unknown_is_no_finding(cost):
    assert of(results(overhead=cost), "profiler-slows-training") == []


def test_too_few_undisturbed_steps_say_what_would_help():
    run = results(busy=BusySteps(tuple(range(30)), 10))
    short = replace(run.stragglers, status="insufficient", reason="nsys was …", found=())
    (found,) = of(replace(run, stragglers=short, causes=()), "stragglers-not-assessed")
    assert found.advice.startswith("run more steps, or record fewer of them (profile.steps)")


def test_ranks_that_are_not_connected_are_told_where_to_look():
    run = with_ranks(results(), horovod_size=1)
    apart = replace(run.stragglers, status="insufficient", reason="…", found=())
    (found,) = of(replace(run, stragglers=apart, causes=()), "stragglers-not-assessed")
    assert found.advice.startswith("see horovod-size-mismatch")


def test_collectives_of_a_window_are_not_said_to_be_missing():
    marked = results(collective_form=arrivals.MARKED)
    assert [f for f in of(marked, "not-collected") if "each gradient" in f.message]
    window = replace(marked, transfer_form=arrivals.PROFILER)
    assert of(window, "not-collected") == []


@pytest.mark.parametrize(
    ("state", "reason", "level"),
    [
        (manifest.EMPTY, "the training never reached the range to record", "warn"),
        (manifest.PARTIAL, "the recording was stopped: the disk is nearly full", "info"),
        (manifest.PARTIAL, "nvtx 0.2.12 and nsys 2022.4.2: no NVTX range arrived", "info"),
    ],
)
def test_what_became_of_a_recording_is_told_as_it_is(state, reason, level):
    infos = []
    for rank in range(4):
        info = rank_info(rank, f"node{rank // 2}", 4)
        info.sources["nsys"] = SourceState("nsys", state, reason)
        infos.append(info)
    (found,) = of(replace(results(), ranks=tuple(infos)), "recording-incomplete")
    assert (found.level, found.message) == (level, f"nsys is {state} on ranks 0-3: {reason}")
