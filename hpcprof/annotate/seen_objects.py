"""Describes objects of TensorFlow and Keras, 2 and 3, in the words of ``training_record``.

Each function may raise whatever an object of another version raises; the caller notes it.
"""

from __future__ import annotations

import platform
import sys
from typing import Any, Callable, Iterable, Mapping

from hpcprof.artifacts.training_record import METRIC, OPTIMIZER, OTHER, WEIGHT

_PACKAGES = ("tensorflow", "keras", "tf_keras", "horovod")
_MAX_DESCRIBED = 5000  # layers, variables: a limit for the file, above what models have


def versions() -> dict[str, str]:
    """Versions of Python and of what the training has loaded."""
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _PACKAGES)
    found = {name: version for name, version in loaded if isinstance(version, str)}
    return {**found, "python": platform.python_version()}


def traces(functions: Mapping[str, Callable[[], Any]]) -> dict[str, int]:
    """How often each function was traced; those that are gone, or do not tell, are left out."""
    counts = {}
    for name, function in functions.items():
        tell = getattr(function(), "experimental_get_tracing_count", None)
        if tell is not None:
            counts[name] = int(tell())
    return counts


def model_fields(model: Any) -> dict[str, Any]:
    """The field ``model``."""
    flatten = getattr(model, "_flatten_layers", None)  # those inside of others too
    layers = flatten(include_self=False) if flatten is not None else getattr(model, "layers", ())
    described = [{"name": str(each.name), "type": type(each).__name__} for each in layers]
    return {
        "name": str(model.name),
        "layers": described[:_MAX_DESCRIBED],
        "jit_compile": is_compiled(model),
        "steps_per_execution": steps_per_execution(model),
        "run_eagerly": bool(getattr(model, "run_eagerly", False)),
    }


def is_compiled(owner: Any) -> bool:
    """Whether XLA compiles a model, or a function of TensorFlow's."""
    for name in ("jit_compile", "_jit_compile"):
        value = getattr(owner, name, None)
        if value is not None:
            return value is True
    return False


def steps_per_execution(model: Any) -> int:
    """Updates in one call of the training function; Keras 2 keeps the number in a variable."""
    value = getattr(model, "_steps_per_execution", None)
    if value is None:
        value = getattr(model, "steps_per_execution", None)
    if value is None:
        return 1
    return int(value.numpy()) if hasattr(value, "numpy") else int(value)


def optimizer_fields(optimizer: Any) -> dict[str, Any]:
    """The field ``optimizer``: class, first components of its operations' names, learning rate."""
    scopes: list[str] = []
    inner = optimizer
    for _ in range(5):  # of LossScaleOptimizer and its like
        for scope in (getattr(inner, "name", None), getattr(inner, "_name", None)):
            if isinstance(scope, str) and scope not in scopes:
                scopes.append(scope)
        name = type(inner).__name__
        scopes.extend(each for each in (name, name.lower()) if each not in scopes)
        following = getattr(inner, "inner_optimizer", None) or getattr(inner, "_optimizer", None)
        if following is None or following is inner:
            break
        inner = following
    return {
        "class": type(optimizer).__name__,
        "scopes": scopes,
        "learning_rate": _learning_rate(optimizer),
    }


def _learning_rate(optimizer: Any) -> Any:
    try:
        rate = optimizer.learning_rate
        return float(rate.numpy() if hasattr(rate, "numpy") else rate)
    except Exception:  # a schedule, or an optimizer that has none
        return None


def variables(model: Any, optimizer: Any, sources: Iterable[Any]) -> list[dict[str, Any]]:
    """The field ``variables``: each once, in the first role that it has."""
    there = [each for each in sources if each is not None]
    groups: list[tuple[str, list[Any]]] = [(WEIGHT, there)]
    if model is not None:
        groups.append((WEIGHT, _listed(model, "weights")))
        groups.append((METRIC, [v for m in _listed(model, "metrics") for v in m.variables]))
    groups.append((OPTIMIZER, _listed(optimizer, "variables")))
    seen: set[int] = set()
    found = []
    for role, group in groups:
        for each in group:
            if id(each) not in seen:
                seen.add(id(each))
                found.append(_variable(each, role))
    return found[:_MAX_DESCRIBED]


def _listed(owner: Any, name: str) -> list[Any]:
    """A list of an object's; older optimizers have a method of that name, some break on it."""
    try:
        value = getattr(owner, name, ())
        return list(value() if callable(value) and not isinstance(value, list) else value)
    except Exception:  # Horovod's optimizer on Keras 3
        return []


def _variable(variable: Any, role: str) -> dict[str, Any]:
    shape = [None if size is None else int(size) for size in variable.shape]
    count = 1
    for size in shape:
        count *= size or 0
    dtype = sys.modules["tensorflow"].as_dtype(variable.dtype)
    return {
        "name": str(getattr(variable, "path", None) or variable.name),
        "shape": shape,
        "dtype": dtype.name,
        "bytes": count * int(dtype.size),
        "role": role if role in (WEIGHT, OPTIMIZER, METRIC) else OTHER,
        "trainable": bool(getattr(variable, "trainable", False)) and role == WEIGHT,
    }


def batch_size(flat: Iterable[Any]) -> int | None:
    """Leading dimension of a batch's first tensor, of all devices of this rank together."""
    for each in flat:
        parts = getattr(each, "values", None) if type(each).__name__ == "PerReplica" else (each,)
        sizes = [next(iter(part.shape)) for part in parts or () if len(part.shape)]
        if sizes:
            return sum(map(int, sizes))
    return None


def strategy_fields(strategy: Any) -> dict[str, Any]:
    """The fields ``strategy`` and ``replicas``: class name, devices of this rank that train."""
    devices = getattr(strategy.extended, "worker_devices", None)
    replicas = len(devices) if devices else int(strategy.num_replicas_in_sync)
    return {"strategy": type(strategy).__name__, "replicas": replicas}


def callback_fields(given: Any) -> dict[str, Any]:
    """The fields ``callbacks`` and ``profile_batch`` of what ``fit`` was given."""
    given = getattr(given, "callbacks", given)  # a CallbackList
    listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    fields: dict[str, Any] = {"callbacks": [type(each).__name__ for each in listed]}
    for each in listed:
        first = getattr(each, "_start_batch", 0)
        if type(each).__name__ == "TensorBoard" and first:
            fields["profile_batch"] = f"{first},{getattr(each, '_stop_batch', first)}"
    return fields
