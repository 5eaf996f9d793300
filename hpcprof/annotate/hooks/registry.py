"""Which hooks there are: the name it has in ``training.json``, the module whose import lets it
attach, and the function that attaches it, which is told of that module.

``attach`` raises whatever it finds missing; that is noted as ``failed`` under the hook's name. It
attaches nothing, and says so by raising ``NotForThisVersion``, where a module of this name holds
something else in this version of the package.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

_HERE = "hpcprof.annotate.hooks"
_KERAS2 = ("keras.src.engine.training", "keras.engine.training", "tf_keras.src.engine.training")
_KERAS2_OPTIMIZERS = (
    *("keras.src.optimizers.optimizer", "keras.src.optimizers.legacy.optimizer_v2"),
    *("keras.optimizers.optimizer", "keras.optimizers.legacy.optimizer_v2"),
    *("tf_keras.src.optimizers.optimizer", "tf_keras.src.optimizers.legacy.optimizer_v2"),
)


class NotForThisVersion(Exception):
    """There is nothing to attach to, and nothing is missed by that."""


class Hook(NamedTuple):
    """``attach`` is "module:function", imported when ``trigger`` was."""

    name: str
    trigger: str
    attach: str

    def attach_to(self, module: Any) -> None:
        """Attach to the module that was imported. Raises whatever attaching raises."""
        where, _, function = self.attach.partition(":")
        getattr(importlib.import_module(where), function)(module)


HOOKS = (
    Hook("iterators", "tensorflow.python.data.ops.iterator_ops", f"{_HERE}.loops:attach_iterators"),
    Hook(
        "distributed iterators",
        "tensorflow.python.distribute.input_lib",
        f"{_HERE}.loops:attach_distributed_iterators",
    ),
    Hook(
        "functions",
        "tensorflow.python.eager.polymorphic_function.polymorphic_function",
        f"{_HERE}.loops:attach_functions",
    ),
    Hook(
        "concrete functions",
        "tensorflow.python.eager.polymorphic_function.concrete_function",
        f"{_HERE}.loops:attach_concrete_functions",
    ),
    Hook("gradients", "tensorflow.python.eager.backprop", f"{_HERE}.loops:attach_gradients"),
    Hook("optimizers", "tensorflow.python.training.optimizer", f"{_HERE}.optimizers:attach_v1"),
    *(Hook("optimizers", name, f"{_HERE}.optimizers:attach_keras2") for name in _KERAS2_OPTIMIZERS),
    Hook(
        "optimizers",
        "keras.src.optimizers.base_optimizer",
        f"{_HERE}.optimizers:attach_keras3",
    ),
    *(Hook("keras", name, f"{_HERE}.keras2:attach") for name in _KERAS2),
    Hook("keras", "keras.src.backend.tensorflow.trainer", f"{_HERE}.keras3:attach"),
    *(Hook("keras saving", name, f"{_HERE}.checkpoints:attach_models") for name in _KERAS2),
    Hook("keras saving", "keras.src.models.model", f"{_HERE}.checkpoints:attach_models"),
    Hook(
        "checkpoints",
        "tensorflow.python.checkpoint.checkpoint",
        f"{_HERE}.checkpoints:attach_checkpoints",
    ),
    Hook(
        "checkpoints",
        "tensorflow.python.checkpoint.checkpoint_management",
        f"{_HERE}.checkpoints:attach_managers",
    ),
    Hook("horovod", "horovod.tensorflow", f"{_HERE}.horovod:attach"),
    Hook("tf.profiler", "tensorflow", f"{_HERE}.early:attach_profiler"),
    Hook("op origins", "tensorflow", "hpcprof.annotate.op_origins:attach_tensorflow"),
    Hook("op origins of keras", "keras", "hpcprof.annotate.op_origins:attach_keras"),
    Hook("op origins of keras", "tf_keras", "hpcprof.annotate.op_origins:attach_keras"),
)
