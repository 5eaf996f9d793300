"""Keras 2, in TensorFlow up to 2.15, and as the package tf_keras in later ones."""

from __future__ import annotations

import importlib
from typing import Any

from hpcprof.annotate.hooks import keras_training
from hpcprof.annotate.hooks.keras_training import Flavor, OneBatch
from hpcprof.annotate.hooks.patching import Function
from hpcprof.annotate.hooks.registry import NotForThisVersion
from hpcprof.annotate.seen_objects import steps_per_execution


def attach(module: Any) -> None:
    """Hook ``Model`` of ``engine.training``."""
    if not hasattr(module, "Model"):
        raise NotForThisVersion
    keras_training.attach(module.Model, Flavor(_why_whole, _on_batch))


def _why_whole(model: Any) -> str | None:
    if getattr(model, "autotune_steps_per_execution", False):
        return "steps_per_execution is found by Keras"
    updates = steps_per_execution(model)
    return None if updates == 1 else f"steps_per_execution is {updates}"


def _on_batch(model: Any, function: Function) -> Function:
    # a tf.function, or the Python function where the model runs eagerly
    original = getattr(function, "python_function", function)

    def train_function(batch: Any) -> Any:
        """Runs a training execution with a single step."""
        return original(OneBatch(batch))

    if original is function:
        return train_function
    tf = importlib.import_module("tensorflow")
    compiled: Function = tf.function(train_function, reduce_retracing=True)
    model.train_tf_function = compiled  # whose graph the TensorBoard callback writes
    return compiled
