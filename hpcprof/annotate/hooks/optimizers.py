"""Watches optimizers: which one it is, and when it updates the weights.

An optimizer may apply gradients through another one (loss scaling), and older interfaces through
newer ones; the outermost call counts.
"""

from __future__ import annotations

import threading
from typing import Any

from hpcprof.annotate import automatic, training_seen
from hpcprof.annotate.hooks import loops
from hpcprof.annotate.hooks.patching import Function, patch
from hpcprof.annotate.hooks.registry import NotForThisVersion


class _Within(threading.local):
    update = False


_within = _Within()


def attach_keras2(module: Any) -> None:
    """Hook the optimizers of Keras 2, new and legacy."""
    names = ("_BaseOptimizer", "Optimizer", "OptimizerV2")
    classes = [getattr(module, name) for name in names if hasattr(module, name)]
    own = [each for each in classes if "apply_gradients" in vars(each)]
    if not own:
        raise NotForThisVersion  # Keras 3 has a module of the same name
    for each in own:
        patch(each, "apply_gradients", _applying)
        patch(each, "__init__", _making)


def attach_keras3(module: Any) -> None:
    """Hook the optimizers of Keras 3."""
    patch(module.BaseOptimizer, "apply", _applying)
    patch(module.BaseOptimizer, "__init__", _making)


def attach_v1(module: Any) -> None:
    """Hook those of tf.compat.v1."""
    patch(module.Optimizer, "apply_gradients", _applying)
    patch(module.Optimizer, "__init__", _making)


def _making(original: Function) -> Function:
    def __init__(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        training_seen.optimizer_was_made()

    return __init__


def _applying(original: Function) -> Function:
    def apply(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _within.update or not automatic.may_look():
            return original(optimizer, *args, **kwargs)
        training_seen.saw_optimizer(optimizer)
        _within.update = True
        try:
            return loops.update(original, (optimizer, *args), kwargs)
        finally:
            _within.update = False

    return apply
