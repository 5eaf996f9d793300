"""Rules about ranks that are meant to train one model on different data, and do not.

What ranks noted of Horovod and of their weights is compared; a rank that noted nothing is accused
of nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from hpcprof.analyses import weights
from hpcprof.analyses.horovod_use import HorovodUse, horovod_use
from hpcprof.analyses.run_results import RunResults
from hpcprof.analyses.weights import WeightAgreement, weight_agreement
from hpcprof.artifacts import manifest
from hpcprof.findings.model import CRITICAL, INFO, INSUFFICIENT, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.units import counted, number_list, ranks

_Value = TypeVar("_Value", bound=Hashable)

_FIRST_BATCHES = 3
_MIN_STEPS = 5
_MULTIWORKER = "multiworker"
_KERAS_2 = (
    "give the optimizer to hvd.DistributedOptimizer and compile the model with what that returns: "
    "optimizer = hvd.DistributedOptimizer(optimizer); in a loop of your own write tape = "
    "hvd.DistributedGradientTape(tape) before tape.gradient(...)"
)
_KERAS_3 = (
    "Horovod 0.28.1 overrides methods that Keras 3 does not call: install tf-keras and set "
    "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, or average in a loop of your own: "
    "gradients = [hvd.allreduce(g) for g in tape.gradient(loss, variables)]"
)
_BROADCAST_2 = (
    "hvd.broadcast_variables(model.variables, root_rank=0), and the same for the optimizer's "
    "variables; with Keras's fit callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]"
)
_BROADCAST_3 = (
    "hvd.broadcast_variables([v.value for v in model.variables], root_rank=0), and the same for "
    "optimizer.variables (Horovod's callback knows no variables of Keras 3)"
)
_ON_PURPOSE = "; where each rank is meant to train a model of its own, nothing is wrong"


@rule
def no_gradient_sync(results: RunResults) -> Iterator[Finding]:
    """Horovod connects the ranks and averages none of their gradients: each trains its own model.

    Fires: Keras 3 with hvd.DistributedOptimizer: no allreduce in any graph, and after step 4 the
    weights of the ranks differ. (warn, insufficient) no allreduce, and weights were not noted.
    Stays quiet: gradients are averaged, also by hand or through another library (the weights are
    alike); one rank; Horovod's calls were not counted and the weights are alike.
    """
    use, agreement = horovod_use(results.ranks), weight_agreement(results.ranks)
    if not use.ranks or use.gradients:
        return
    differ = agreement.state == weights.DIFFERENT or (
        agreement.state == weights.APART and agreement.changed
    )
    if differ:
        yield _trains_apart(results, use, agreement)
    elif use.exchanges_nothing and use.wrapped and _proves_nothing(results, agreement):
        yield Finding(
            rule="no-gradient-sync",
            level=WARN,
            status=INSUFFICIENT,
            ranks=use.ranks,
            cause="horovod",
            message=f"{counted(_steps(results), 'step')} and Horovod was given no gradient to "
            f"average between its {use.size} ranks; whether each trains a model of its own could "
            "not be checked",
            evidence=(_why_unchecked(agreement),),
            advice=_cure(results),
            next=(("recipe", "weights"), ("ranks", list(use.ranks))),
        )


@rule
def no_broadcast(results: RunResults) -> Iterator[Finding]:
    """Gradients are averaged, but the ranks started from different weights.

    Fires: a loop with hvd.DistributedGradientTape and no broadcast: weights differ by the same
    amount after every step.
    Stays quiet: a broadcast was made; weights are alike (a common seed, a common checkpoint, or
    sent by other means); no gradient is averaged (no-gradient-sync).
    """
    use, agreement = horovod_use(results.ranks), weight_agreement(results.ranks)
    differs = agreement.state in (weights.SHIFTED, weights.APART, weights.DIFFERENT)
    if use.broadcasts != 0 or not use.exchanges or not (differs and agreement.first_differs):
        return
    yield Finding(
        rule="no-broadcast",
        level=CRITICAL,
        ranks=agreement.ranks,
        nodes=_nodes(results, agreement.ranks),
        cause="horovod",
        message=f"the {use.size} ranks average their gradients and add them to different weights: "
        f"{agreement.variable} differs between {ranks(agreement.ranks)} after "
        f"{_at(agreement)}, and nothing was broadcast",
        evidence=(
            "Horovod was asked for no broadcast of floating point values in this job",
            "every rank's model is another one, and none has the weights that its gradients are "
            "averages for",
        ),
        advice="send rank 0's weights to all after the first step: "
        + (_BROADCAST_3 if _is_keras_3(results) else _BROADCAST_2),
        next=(("recipe", "weights"), ("ranks", list(agreement.ranks))),
    )


@rule
def same_input_shard(results: RunResults) -> Iterator[Finding]:
    """Ranks that train one model were given the same batches, so they do the same work twice.

    Fires: the first three batches of ranks 0-3 are equal, byte for byte.
    Stays quiet: batches that are the same again and again on one rank (a constant or tiny data
    set); batches that nobody saw; ranks that train models of their own.
    """
    if not _train_together(results):
        return
    by_batches = _grouped(
        {
            info.rank: info.training.first_batches[:_FIRST_BATCHES]
            for info in results.ranks
            if info.training is not None
        },
    )
    for batches, sharing in by_batches.items():
        if len(sharing) < 2 or len(set(batches)) < _FIRST_BATCHES:
            continue
        yield Finding(
            rule="same-input-shard",
            level=WARN,
            ranks=sharing,
            nodes=_nodes(results, sharing),
            cause="input",
            phase="input",
            message=f"{ranks(sharing)} were given the same batches: the first {_FIRST_BATCHES} "
            "are equal, so that each sample is computed "
            f"{counted(len(sharing), 'time')}",
            evidence=("compared by up to 64 KiB of each tensor of a batch",),
            advice="give every rank its own part, before shuffle and batch: dataset = "
            "dataset.shard(hvd.size(), hvd.rank()); synthetic data needs another seed on each "
            "rank. Ranks that share one batch on purpose (model parallel) are right as they are",
            next=(("recipe", "input"), ("ranks", list(sharing))),
        )


@rule
def batch_size_differs(results: RunResults) -> Iterator[Finding]:
    """Ranks that train one model take batches of different sizes.

    Fires: rank 3 takes 16 samples per batch and the others 32.
    Stays quiet: one size; sizes that nobody saw; ranks that train models of their own.
    """
    sizes = {
        info.rank: info.training.batch_size
        for info in results.ranks
        if info.training is not None and info.training.batch_size
    }
    by_size = _grouped(sizes)
    if len(by_size) < 2 or not _train_together(results):
        return
    usual = max(by_size, key=lambda size: len(by_size[size]))
    others = tuple(sorted(rank for rank in sizes if sizes[rank] != usual))
    yield Finding(
        rule="batch-size-differs",
        level=WARN,
        ranks=others,
        nodes=_nodes(results, others),
        cause="input",
        message=f"the first batch had {_per_group(by_size, 'sample')}",
        evidence=("a mean over ranks counts every rank alike, whatever its batch holds",),
        advice="take the same batch size on every rank, and batch(..., drop_remainder=True); "
        "on slower hardware weigh the gradients by the batch size if it is meant",
        next=(("recipe", "input"), ("ranks", list(others))),
    )


@rule
def step_count_differs(results: RunResults) -> Iterator[Finding]:
    """Ranks that train one model ended by themselves after different numbers of steps.

    Fires: ranks 0-2 ended after step 99 and rank 3 after step 97, all with exit code 0.
    Stays quiet: the same last step; a job that was killed or failed (job-ended-early); a recording
    that is not whole; ranks that train models of their own.
    """
    if results.missing or any(info.exit_code != 0 for info in results.ranks):
        return
    last = {
        info.rank: source.last_step
        for info in results.ranks
        if (source := info.sources.get("spans")) is not None
        and source.state == manifest.OK
        and source.last_step is not None
    }
    by_step = _grouped(last)
    if len(last) < len(results.ranks) or len(by_step) < 2 or not _train_together(results):
        return
    fewest = min(by_step)
    yield Finding(
        rule="step-count-differs",
        level=INFO,
        ranks=by_step[fewest],
        nodes=_nodes(results, by_step[fewest]),
        cause="input",
        message="the ranks ended after different steps: "
        + ", ".join(f"{step} on {ranks(group)}" for step, group in sorted(by_step.items())),
        advice="give every rank the same number of batches (dataset.take(steps), or "
        "steps_per_epoch), or end with hvd.join(): the ranks that go on wait for the others",
        next=(("recipe", "input"), ("ranks", list(by_step[fewest]))),
    )


def _train_together(results: RunResults) -> bool:
    """Whether the ranks are meant to train one model, as far as anybody said."""
    return bool(horovod_use(results.ranks).ranks) or results.job.strategy == _MULTIWORKER


def _trains_apart(results: RunResults, use: HorovodUse, agreement: WeightAgreement) -> Finding:
    known = "Horovod was given no gradient to average"
    if not use.exchanges_nothing:
        known = "Horovod's calls were not counted"
        if use.others is not None:
            known = "Horovod's optimizer or tape was given no gradient to average"
    evidence = [f"{known}: {_counts(use)}"] if use.gradients is not None else []
    return Finding(
        rule="no-gradient-sync",
        level=CRITICAL if use.exchanges_nothing else WARN,
        ranks=agreement.ranks,
        nodes=_nodes(results, agreement.ranks),
        steps=(agreement.steps[0], agreement.steps[-1]),
        cause="horovod",
        message=f"{ranks(agreement.ranks)} train models of their own: {known}, and the weights of "
        f"{agreement.variable} differ between ranks after {_at(agreement)}",
        evidence=(*evidence, "what it learns is what one rank alone would learn"),
        advice=_cure(results) + _ON_PURPOSE,
        next=(("recipe", "weights"), ("ranks", list(agreement.ranks))),
    )


def _counts(use: HorovodUse) -> str:
    return (
        f"{use.gradients or 0} gradients, {use.others or 0} other reductions and "
        f"{use.broadcasts or 0} broadcasts of {use.wrapped or 0} wrapped optimizers or tapes, "
        "counted where Python asks for them"
    )


def _at(agreement: WeightAgreement) -> str:
    word = "step" if len(agreement.steps) == 1 else "steps"
    return f"{word} {number_list(agreement.steps)}"


def _cure(results: RunResults) -> str:
    return _KERAS_3 if _is_keras_3(results) else _KERAS_2


def _is_keras_3(results: RunResults) -> bool:
    """Whether it trains with Keras 3; tf_keras is Keras 2 beside it."""
    versions = [info.training.versions for info in results.ranks if info.training is not None]
    return any(
        known.get("keras", "").startswith("3.") and "tf_keras" not in known for known in versions
    )


def _proves_nothing(results: RunResults, agreement: WeightAgreement) -> bool:
    """Whether the weights leave it open: not noted, or all ranks compute the same anyway."""
    if agreement.state == weights.UNKNOWN:
        return _steps(results) >= _MIN_STEPS
    batches = [info.training.first_batches for info in results.ranks if info.training is not None]
    return agreement.state == weights.ALIKE and bool(batches[0]) and len(set(batches)) == 1


def _why_unchecked(agreement: WeightAgreement) -> str:
    if agreement.state == weights.UNKNOWN:
        return "the ranks' weights were not noted at the same steps"
    return "the ranks' weights are alike, but so is the data they were given"


def _steps(results: RunResults) -> int:
    """How many steps the longest rank made, as far as anybody noted."""
    counts = [info.training.steps for info in results.ranks if info.training is not None]
    last = [
        source.last_step + 1
        for info in results.ranks
        for source in info.sources.values()
        if source.last_step is not None
    ]
    return max((*counts, *last), default=0)


def _grouped(values: Mapping[int, _Value]) -> dict[_Value, tuple[int, ...]]:
    """Value → the ranks that have it, most ranks first."""
    groups: dict[_Value, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {value: tuple(group) for value, group in ordered}


def _per_group(groups: Mapping[int, tuple[int, ...]], noun: str) -> str:
    return ", ".join(f"{counted(value, noun)} on {ranks(group)}" for value, group in groups.items())


def _nodes(results: RunResults, concerned: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(sorted({info.node for info in results.ranks if info.rank in concerned}))
