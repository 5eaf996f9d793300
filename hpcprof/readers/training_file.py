"""Reads ``training.json`` of a rank: what the hooks saw of the training. Judges nothing.

It was written while a training ran, perhaps by another version: a field that makes no sense counts
as not known, and is told; it never keeps the rank from being read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.training_record import SCHEMA
from hpcprof.errors import InputError
from hpcprof.trace.model import Training

_Read = Callable[[Any], Any]


def read_training(paths: ArtifactPaths, rank: int) -> tuple[Training | None, tuple[str, ...]]:
    """What the hooks saw, None where there is no such file, and warnings. Raises nothing."""
    path = paths.training(rank)
    if not path.exists():
        return None, ()
    try:
        record = read_json(path, "training.json")
    except InputError as error:
        return None, (f"what hooks saw of the training is not known: {error}",)
    if record.get("schema") != SCHEMA:
        return None, (
            f"what hooks saw of the training is not known: training.json has schema "
            f"{record.get('schema')}, this hpcprof reads {SCHEMA}",
        )
    return training_of(record)


def training_of(record: dict[str, Any]) -> tuple[Training, tuple[str, ...]]:
    """The record as Training, and a warning that names the fields that make no sense."""
    flat = {**record, **_of_model(record.get("model")), **_of_optimizer(record.get("optimizer"))}
    found: dict[str, Any] = {}
    damaged = []
    for name, read in _FIELDS.items():
        value = flat.get(name)
        if value is None:
            continue
        try:
            found[name] = read(value)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            damaged.append(name)
    if not damaged:
        return Training(**found), ()
    return Training(**found), (
        f"{', '.join(damaged)} in training.json makes no sense and is ignored",
    )


def _of_model(model: Any) -> dict[str, Any]:
    if not isinstance(model, dict):
        return {"model_name": model, "layers": None}
    return {"model_name": model.get("name"), "layers": model.get("layers")}


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    if not isinstance(optimizer, dict):
        return {"optimizer": optimizer}
    return {"optimizer": optimizer.get("class"), "optimizer_scopes": optimizer.get("scopes")}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(each) for each in _list(value))


def _text_of_each(value: Any) -> dict[str, str]:
    return {key: _text(each) for key, each in _mapping(value).items()}


def _count_of_each(value: Any) -> dict[str, int]:
    return {key: _count(each) for key, each in _mapping(value).items()}


def _texts_of_each(value: Any) -> dict[str, tuple[str, ...]]:
    return {key: _texts(each) for key, each in _mapping(value).items()}


def _samples_of_each(value: Any) -> dict[str, tuple[tuple[int, int, int], ...]]:
    return {key: tuple(map(_sample, _list(each))) for key, each in _mapping(value).items()}


def _sample(value: Any) -> tuple[int, int, int]:
    step, current, peak = _list(value)
    return _count(step), _count(current), _count(peak)


def _layers(value: Any) -> tuple[str, ...]:
    return tuple(_text(each["name"]) for each in _list(value))


def _variables(value: Any) -> tuple[tuple[str, int, str, bool], ...]:
    return tuple(
        (
            _text(each["name"]),
            _count(each["bytes"]),
            _text(each["role"]),
            each.get("trainable") is True,
        )
        for each in _list(value)
    )


def _checksums(value: Any) -> tuple[tuple[int, str, str], ...]:
    return tuple(
        (_count(each["step"]), _text(each["variable"]), _text(each["value"]))
        for each in _list(value)
    )


_FIELDS: dict[str, _Read] = {
    "steps": _count,
    "steps_by": _text,
    "versions": _text_of_each,
    "hooks": _text_of_each,
    "input_not_separable": _text,
    "phases_not_separable": _text,
    "strategy": _text,
    "replicas": _count,
    "model_name": _text,
    "layers": _layers,
    "optimizer": _text,
    "optimizer_scopes": _texts,
    "variables": _variables,
    "batch_size": _count,
    "first_batches": _texts,
    "horovod": _mapping,
    "callbacks": _texts,
    "profile_batch": str,  # as Keras takes it: a number, or two
    "traces": _count_of_each,
    "eager_steps": _count,
    "checksums": _checksums,
    "op_steps": _text,
    "tf_steps": _text,
    "op_origins": _texts_of_each,
    "memory": _samples_of_each,
    "warnings": _texts,
}
