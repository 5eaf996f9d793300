"""Rules about what the hooks saw of the training: how it is run, and what they could not see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from hpcprof.analyses.run_results import RunResults
from hpcprof.artifacts.training_record import FAILED
from hpcprof.findings.model import INFO, NOT_COLLECTED, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.trace.model import RankInfo, Training
from hpcprof.units import counted, ranks

# a first trace, one for the last batch, a few lengths: TensorFlow itself warns from the fifth on
_USUAL_TRACES = 5
_STEPS_PER_TRACE = 50  # a trace takes as long as tens of steps
_MIN_EAGER_STEPS = 5
_MIN_EAGER_FRAC = 0.5
_NSYS = "nsys"
# name of a hook (annotate/hooks/registry.py) → what is not known without it
_SEEN_BY = {
    "all": "steps, their phases and what the training asks of Horovod",
    "iterators": "the wait for a batch in loops over tf.data",
    "distributed iterators": "the wait for a batch of a tf.distribute strategy",
    "functions": "the steps of a loop of one's own",
    "concrete functions": "the steps of a loop of one's own",
    "gradients": "the steps of a loop of one's own",
    "optimizers": "where a step of a loop of one's own ends",
    "keras": "the steps of Keras's fit and their wait for a batch",
    "keras saving": "the time of saving a Keras model",
    "checkpoints": "the time of writing checkpoints",
    "horovod": "whether Horovod averages the gradients",
    "tf.profiler": "memory from the start of the training on",
    "op origins": "the phase of some operations that do not carry it in their names",
    "op origins of keras": "the phase of some operations that do not carry it in their names",
}


@rule
def retracing(results: RunResults) -> Iterator[Finding]:
    """TensorFlow builds the graph of a training function again and again.

    Fires: train_step was traced 40 times in 60 steps.
    Stays quiet: five traces; more of them in a long run (less than one in 50 steps).
    """
    concerned: dict[str, dict[int, int]] = {}
    for info, training in _seen(results):
        steps = _steps(info, training)
        for function, traces in training.traces.items():
            if traces > _USUAL_TRACES and traces * _STEPS_PER_TRACE > steps > 0:
                concerned.setdefault(function, {})[info.rank] = traces
    for function, traces_of in sorted(concerned.items()):
        steps = max(_steps(i, t) for i, t in _seen(results) if i.rank in traces_of)
        yield Finding(
            rule="retracing",
            level=WARN,
            ranks=tuple(sorted(traces_of)),
            nodes=_nodes(results, traces_of),
            cause="retracing",
            message=f"{function} was traced up to {counted(max(traces_of.values()), 'time')} in "
            f"{counted(steps, 'step')} on {ranks(traces_of)}; each trace takes as long as many "
            "steps, and the other ranks wait for it",
            advice="call it with tensors of one shape and type: batch(..., drop_remainder=True), "
            "lengths padded to a few values, tf.constant(...) in place of Python numbers; "
            "@tf.function(reduce_retracing=True) lets shapes vary",
            next=(("recipe", "timeline"), ("ranks", sorted(traces_of))),
        )


@rule
def eager_training(results: RunResults) -> Iterator[Finding]:
    """The updates are made outside any tf.function: each operation is started from Python.

    Fires: 58 of 60 updates were made eagerly.
    Stays quiet: the training step is a tf.function, also when a few updates before were not.
    """
    eager = {
        info.rank: training
        for info, training in _seen(results)
        if training.eager_steps >= max(_MIN_EAGER_STEPS, _MIN_EAGER_FRAC * _steps(info, training))
    }
    if not eager:
        return
    most = max(eager.values(), key=lambda training: training.eager_steps)
    yield Finding(
        rule="eager-training",
        level=WARN,
        ranks=tuple(sorted(eager)),
        nodes=_nodes(results, eager),
        cause="eager",
        message=f"{counted(most.eager_steps, 'update')} of {ranks(eager)} were made eagerly: "
        "Python starts each operation, and the device waits for it",
        advice="write @tf.function above the function that makes one training step; with Keras "
        "leave out run_eagerly=True and tf.config.run_functions_eagerly(True)",
        next=(("recipe", "kernels"), ("ranks", sorted(eager))),
    )


@rule
def tensorboard_profiles(results: RunResults) -> Iterator[Finding]:
    """TensorBoard's callback profiles batches while hpcprof records, in each other's way.

    Fires: profile_batch is set and nsys recorded the rank (one of the two has no GPU data), or
    tf.profiler was to record steps for hpcprof (only one session at a time).
    Stays quiet: no such callback; nothing that would meet it; a rank without a GPU under nsys.
    """
    for why, concerned in _meeting(results).items():
        batches = sorted({t.profile_batch or "" for i, t in _seen(results) if i.rank in concerned})
        yield Finding(
            rule="tensorboard-profiles",
            level=WARN,
            ranks=tuple(sorted(concerned)),
            nodes=_nodes(results, concerned),
            cause="profiler",
            message=f"TensorBoard's callback profiles (profile_batch {'; '.join(batches)}) on "
            f"{ranks(concerned)}, and {why}",
            advice="tf.keras.callbacks.TensorBoard(..., profile_batch=0) in runs that hpcprof "
            "records; what it shows is in the report, or record it with profile.tf_ranks",
            next=(("recipe", "kernels"), ("ranks", sorted(concerned))),
        )


@rule
def extra_callbacks(results: RunResults) -> Iterator[Finding]:
    """A rank that is late runs Keras callbacks that the other ranks do not.

    Fires: rank 0 is late and only rank 0 has ModelCheckpoint.
    Stays quiet: a rank with callbacks of its own that is not late, as rank 0 often is.
    """
    callbacks = {info.rank: set(one.callbacks) for info, one in _seen(results) if one.callbacks}
    for straggler in results.stragglers.found:
        own = [callbacks[rank] for rank in straggler.ranks if rank in callbacks]
        others = [names for rank, names in callbacks.items() if rank not in straggler.ranks]
        if not others or len(own) < len(straggler.ranks):
            continue
        extra = sorted(set.intersection(*own).difference(*others))
        if not extra:
            continue
        yield Finding(
            rule="extra-callbacks",
            level=INFO,
            ranks=straggler.ranks,
            nodes=straggler.nodes,
            cause="host",
            message=f"{ranks(straggler.ranks)}, for which the others wait, "
            f"{'runs' if len(straggler.ranks) == 1 else 'run'} callbacks that no other rank "
            f"runs: {', '.join(extra)}",
            evidence=("whether they are what takes the time is not shown by this",),
            advice="let them work less often (save_freq, update_freq) or in the background; rank-"
            "arrives-late says how much the others wait",
            next=(("recipe", "timeline"), ("ranks", list(straggler.ranks))),
        )


@rule
def hooks_failed(results: RunResults) -> Iterator[Finding]:
    """A hook could not attach to this version of TensorFlow, Keras or Horovod.

    Fires: once per job, with every hook that failed and why.
    Stays quiet: every hook of a loaded package is attached; hooks are off (--no-hooks).
    """
    failed: dict[tuple[str, str], list[int]] = {}
    for info, training in _seen(results):
        for name, state in training.hooks.items():
            if state.startswith(FAILED):
                why = state[len(FAILED) :].lstrip(": ") or "unknown why"
                failed.setdefault((name, why), []).append(info.rank)
    if not failed:
        return
    concerned = {rank for affected in failed.values() for rank in affected}
    unknown = sorted({_SEEN_BY.get(name, f"what {name} shows") for name, _ in failed})
    yield Finding(
        rule="hooks-failed",
        level=INFO,
        status=NOT_COLLECTED,
        ranks=tuple(sorted(concerned)),
        message=f"{'; '.join(unknown)}: not measured on {ranks(concerned)}, because hpcprof could "
        "not attach to this version",
        evidence=tuple(
            f"hook {name} on {ranks(affected)}: {why}"
            for (name, why), affected in sorted(failed.items())
        ),
        advice="mark the steps with hpcprof.annotate (annotate.step, annotate.data), which needs "
        "no hook; versions that are known to work are in docs/instrumentation.md",
        next=(("recipe", "annotate"), ("ranks", sorted(concerned))),
    )


def _meeting(results: RunResults) -> dict[str, set[int]]:
    """What meets TensorBoard's profiler → the ranks on which it does."""
    reasons: Mapping[str, Callable[[RankInfo, Training], bool]] = {
        "nsys recorded them too: only one of the two may trace CUDA in a process, the other lacks "
        "what the GPU did": lambda info, _: _under_nsys(info) and info.gpus != (),
        "hpcprof has tf.profiler record steps there: only one such recording runs at a time": (
            lambda _, training: (training.tf_steps or "")[:1].isdigit()
        ),
    }
    found: dict[str, set[int]] = {}
    for info, training in _seen(results):
        for why, meets in reasons.items():
            if training.profile_batch and meets(info, training):
                found.setdefault(why, set()).add(info.rank)
    return found


def _under_nsys(info: RankInfo) -> bool:
    return _NSYS in info.sources and info.sources[_NSYS].is_usable


def _seen(results: RunResults) -> Iterator[tuple[RankInfo, Training]]:
    """The ranks of which hooks told anything."""
    for info in results.ranks:
        if info.training is not None:
            yield info, info.training


def _steps(info: RankInfo, training: Training) -> int:
    """How many steps the rank made, as far as anybody noted."""
    last = [s.last_step + 1 for s in info.sources.values() if s.last_step is not None]
    return max((training.steps, *last))


def _nodes(results: RunResults, concerned: Collection[int]) -> tuple[str, ...]:
    return tuple(sorted({info.node for info in results.ranks if info.rank in concerned}))
