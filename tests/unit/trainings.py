"""Ranks that trained: weights in NumPy, noted as annotate does, with what Horovod was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcprof.analyses.run_results import RunResults
from hpcprof.annotate import guards_digests
from hpcprof.trace.model import RankInfo, Training

Weights = npt.NDArray[np.float32]
LOOKS = (1, 4, 49)


class Variable:
    """As much of a variable of TensorFlow's as is read of it."""

    def __init__(self, values: Any, name: str = "dense/kernel:0") -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype, self.name = self.values.shape, self.values.dtype, name

    def numpy(self) -> npt.NDArray[Any]:
        return self.values


def start(seed: int = 0) -> Weights:
    """Weights as a layer starts with."""
    return np.random.default_rng(seed).normal(0, 0.1, (16, 8)).astype(np.float32)


def gradient(seed: int, step: int) -> Weights:
    """What a batch of one rank asks for."""
    rng = np.random.default_rng([seed, step])
    return rng.normal(0, 1, (16, 8)).astype(np.float32)


def trained(
    weights: Weights,
    update: Callable[[int, Weights], Weights],
    looks: tuple[int, ...] = LOOKS,
    name: str = "dense/kernel:0",
) -> tuple[tuple[int, str, str], ...]:
    """Checksums of weights after ``update`` of (step, weights) in each step."""
    noted = []
    for step in range(max(looks) + 1):
        weights = weights + update(step, weights)
        if step in looks:
            noted.append((step, name, guards_digests.weight_sum(Variable(weights))))
    return tuple(noted)


def horovod(size: int = 4, **counts: int) -> dict[str, Any]:
    """What a rank told of Horovod; counts that are not given are 0."""
    names = ("gradients", "allreduces", "scalars", "gathers", "broadcasts", "optimizers", "tapes")
    return {"size": size, **dict.fromkeys(names, 0), **counts}


def with_training(run: RunResults, **fields: Any) -> RunResults:
    """The run with these fields of Training on every rank; a callable gets the rank's number."""

    def training(info: RankInfo) -> Training:
        known = info.training or Training(steps=60)
        given = {k: v(info.rank) if callable(v) else v for k, v in fields.items()}
        return replace(known, **given)

    return replace(run, ranks=tuple(replace(i, training=training(i)) for i in run.ranks))
