"""``training.json`` of a rank: what hpcprof's hooks saw of the training, in its own words.

Written by annotate at the first step, at a few later ones and at the end, whole each time. Every
field may be missing or None: that nobody looked, or could, is not that it is not so.
"""

from __future__ import annotations

from typing import Any

SCHEMA = 1

# what marks the steps of this rank
BY_CALLS = "annotate"  # the script calls hpcprof.annotate itself
BY_KERAS = "keras"
BY_LOOP = "loop"  # a loop over tf.data, or of calls of a training function

# state of a hook
ATTACHED = "attached"
FAILED = "failed"  # followed by ": " and why

# who made an operation whose name does not tell it
BACKWARD_OPS, OPTIMIZER_OPS, INPUT_OPS = "backward", "optimizer", "input"

# roles of a variable
WEIGHT, OPTIMIZER, METRIC, OTHER = "weight", "optimizer", "metric", "other"


def new_training_record() -> dict[str, Any]:
    """A record of which nothing is known yet."""
    return {
        "schema": SCHEMA,
        "versions": {},  # "tensorflow", "keras", "horovod", "python" → version
        "hooks": {},  # name of a hook → ATTACHED or "failed: why"; only those of loaded packages
        "steps_by": None,  # BY_*
        # why the wait for input is not told apart ("steps_per_execution is 8"); None: it is
        "input_not_separable": None,
        "phases_not_separable": None,  # the same for forward and backward ("jit_compile")
        "strategy": None,  # class name of the tf.distribute strategy that trains; None: none seen
        "replicas": None,  # of this rank; one per device under MirroredStrategy
        # {"name", "layers": [{"name", "type"}], "jit_compile", "steps_per_execution",
        #  "run_eagerly"}; of the model that trains
        "model": None,
        # {"class": "Adam", "scopes": ["adam", "Adam"], "learning_rate": …}; scopes are first
        # components of its operations' names, lower-case ones are Keras 3's
        "optimizer": None,
        "variables": [],  # {"name", "shape", "dtype", "bytes", "role", "trainable"}
        "batch_size": None,  # leading dimension of the first batch, of this rank
        "first_batches": [],  # digests of the first batches' content, first one first
        # {"size", "rank", "compression", "backends", "settings": {"HOROVOD_FUSION_THRESHOLD": …}},
        # and how often each was called at Python level, at trace time for what is inside a
        # tf.function: gradients, allreduces, scalars, gathers, broadcasts, optimizers, tapes.
        # None: Horovod was never initialised
        "horovod": None,
        "callbacks": [],  # class names, of Keras's fit
        "profile_batch": None,  # of a TensorBoard callback that profiles
        "traces": {},  # training function → how often it was traced
        "eager_steps": 0,  # updates made outside any tf.function
        "steps": 0,  # that have ended when this was written
        # {"step", "variable", "value"}: the same variables at some steps; the value is a digest,
        # the norm and four sums that are linear in the numbers (guards_digests)
        "checksums": [],
        # *_OPS → names of operations of the graphs, without their types; INPUT_OPS: of tf.data
        "op_origins": {},
        "op_steps": None,  # steps whose operations were named: "10-29"; else why not
        "tf_steps": None,  # steps that tf.profiler recorded; else why not
        # device ("GPU:0") → [step, bytes given away, most bytes so far] after some steps; devices
        # that do not count are not there
        "memory": {},
        "warnings": [],
    }
