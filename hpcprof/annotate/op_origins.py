"""Remembers which operations a gradient, an optimizer or a data pipeline made, at trace time.

An operation's name tells its phase by its scopes, but not always: the body of a
``tf.custom_gradient``, sums of gradients, clipping, and everything in a tf.data function stand at
the root. Who made them is known only while TensorFlow traces the function. Names that tell it
themselves are left out. Adds nothing to any graph and changes no name.
"""

from __future__ import annotations

import functools
import re
import sys
from types import ModuleType
from typing import Any, Callable

from hpcprof.annotate import training_notes
from hpcprof.artifacts.training_record import BACKWARD_OPS, INPUT_OPS, OPTIMIZER_OPS

_MOST_NAMES = 4000  # per origin; a model of many custom gradients; 200 kB of training.json
_FUNCTION_MODULE = "tensorflow.python.data.ops.structured_function"
_PRODUCERS = ("apply_gradients", "apply")  # of an optimizer
_NO_WORK = frozenset(("Identity", "IdentityN", "Const", "NoOp"))
_SUFFIX_RE = re.compile(r"_\d+\Z")

_names: dict[str, dict[str, None]] = {}  # origin → names, oldest first
_open: set[tuple[str, int]] = set()  # (origin, graph): a call inside another one adds nothing


def attach_tensorflow(tensorflow: ModuleType) -> None:
    """Follow gradients and tf.data functions. Raises AttributeError when they are not there."""
    _wrap_producer(tensorflow.GradientTape, "gradient", BACKWARD_OPS)
    _wrap_dataset_function(sys.modules[_FUNCTION_MODULE].StructuredFunctionWrapper)


def attach_keras(keras: ModuleType) -> None:
    """Follow optimizers, of Keras 2 or 3. Raises AttributeError when there are none."""
    optimizer = keras.optimizers.Optimizer
    for method in _PRODUCERS:
        for owner in optimizer.__mro__:
            if method in vars(owner):
                _wrap_producer(owner, method, OPTIMIZER_OPS)


def _wrap_producer(owner: Any, method: str, origin: str) -> None:
    """Every graph operation that the method makes has this origin."""
    original = getattr(owner, method)
    if hasattr(original, "hpcprof_origin"):
        return

    @functools.wraps(original)
    def producing(self: Any, *args: Any, **options: Any) -> Any:
        graph, before = _begin(origin)
        try:
            return original(self, *args, **options)
        finally:
            if graph is not None:
                _end(origin, graph, before, (type(self).__name__, getattr(self, "name", "")))

    _leave_alone(producing, origin)
    setattr(owner, method, producing)


def _wrap_dataset_function(owner: Any) -> None:
    original = owner.__init__
    if hasattr(original, "hpcprof_origin"):
        return

    @functools.wraps(original)
    def making(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        try:
            operations = self.function.graph.get_operations()
            _add(INPUT_OPS, [each.name for each in operations if each.type not in _NO_WORK])
        except Exception:  # a legacy function has no graph to look into
            return

    _leave_alone(making, INPUT_OPS)
    owner.__init__ = making


def _leave_alone(wrapper: Callable[..., Any], origin: str) -> None:
    """Mark it as ours, and keep autograph from rewriting it."""
    wrapper.hpcprof_origin = origin  # type: ignore[attr-defined]
    wrapper.autograph_info__ = {}  # type: ignore[attr-defined]


def _begin(origin: str) -> tuple[Any, int]:
    """The graph that is being traced and how many operations it has; None when none is."""
    try:
        tensorflow = sys.modules["tensorflow"]
        if tensorflow.executing_eagerly():
            return None, 0
        graph = tensorflow.compat.v1.get_default_graph()
        if (origin, id(graph)) in _open:
            return None, 0
        before = len(graph.get_operations())
        _open.add((origin, id(graph)))
    except Exception:  # whatever is wrong, the training traces
        return None, 0
    return graph, before


def _end(origin: str, graph: Any, before: int, scopes: tuple[Any, ...]) -> None:
    try:
        _open.discard((origin, id(graph)))
        # operations are listed in the order in which they were made
        made = [operation.name for operation in graph.get_operations()[before:]]
        known = {"gradient_tape"}
        if origin == OPTIMIZER_OPS:
            # other replicas trace their part while this one waits in its optimizer
            known = {"replica", *(str(scope).lower() for scope in scopes)}
        _add(origin, [name for name in made if known.isdisjoint(_scopes(name))])
    except Exception:  # as above
        return


def _scopes(name: str) -> set[str]:
    """The scopes of a name, without the number that makes each the only one."""
    return {_SUFFIX_RE.sub("", part) for part in name.lower().split("/")}


def _add(origin: str, names: list[str]) -> None:
    known = _names.setdefault(origin, {})
    room = _MOST_NAMES - len(known)
    new = [name for name in names if name not in known]
    known.update(dict.fromkeys(new[:room]))
    if len(new) > room:
        training_notes.warn(
            f"more than {_MOST_NAMES} operations of origin {origin}; the rest are judged by name"
        )
    if new:
        training_notes.put(op_origins={origin: list(known)})
