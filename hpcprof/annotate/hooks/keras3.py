"""Keras 3 with TensorFlow under it."""

from __future__ import annotations

import importlib
from typing import Any

from hpcprof.annotate.hooks import keras_training
from hpcprof.annotate.hooks.keras_training import Flavor, OneBatch
from hpcprof.annotate.hooks.patching import Function
from hpcprof.annotate.seen_objects import steps_per_execution


def attach(module: Any) -> None:
    """Hook ``TensorFlowTrainer`` of ``backend.tensorflow.trainer``."""
    keras_training.attach(module.TensorFlowTrainer, Flavor(_why_whole, _on_batch))


def _why_whole(model: Any) -> str | None:
    updates = steps_per_execution(model)
    return None if updates == 1 else f"steps_per_execution is {updates}"


def _on_batch(model: Any, function: Function) -> Function:
    tf = importlib.import_module("tensorflow")

    # as Keras's own multi_step_on_iterator: AutoGraph leaves it alone
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def multi_step_on_iterator(batch: Any) -> Any:
        """Runs a single training step on a batch of data."""
        return function(OneBatch(batch))

    if model.run_eagerly:
        plain: Function = multi_step_on_iterator
        return plain
    compiled: Function = tf.function(multi_step_on_iterator, reduce_retracing=True)
    return compiled
