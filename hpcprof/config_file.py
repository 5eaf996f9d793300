"""Reads a YAML file of ours into a pydantic model; errors name file, line, field and a likely fix.

Every scalar reaches the model as it was written. YAML 1.1 would read ``time: 1:30`` as the number
90, ``no`` as False and ``0.10`` as 0.1; here the model's own types decide. Does not know what the
fields mean.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from hpcprof.errors import InputError, UsageError

Location = tuple[str | int, ...]
_NULL_TAG = "tag:yaml.org,2002:null"

# pydantic's words for these speak of Python
_IN_OUR_WORDS = {
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must hold names and values, such as {A: 1}",
    "model_type": "must hold fields, indented below it",
    "too_short": "must not be empty",
    "string_type": "must be text; write '' for an empty one",
}


class ConfigModel(BaseModel):
    """A section of one of our YAML files: immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class ConfigFile:
    """Content of one YAML file: plain values, and the line of each field (counted from 1)."""

    path: Path
    what: str
    values: dict[str, Any]
    lines: dict[Location, int]


Model = TypeVar("Model", bound=ConfigModel)


class _AsWrittenLoader(yaml.SafeLoader):
    """A SafeLoader that resolves nothing but null, and no aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, "aliases (*name) are not read here", mark)
        return super().compose_node(parent, index)


_AsWrittenLoader.yaml_implicit_resolvers = {
    first: kept
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if (kept := [pair for pair in resolvers if pair[0] == _NULL_TAG])
}


def read_config_file(path: Path, what: str) -> ConfigFile:
    """Read a YAML mapping. ``what`` names the file in errors, for example "job spec".

    Raises InputError when the file cannot be read, UsageError when it is not such a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} not found: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} cannot be read: {path} ({error})") from None
    lines: dict[Location, int] = {}
    try:
        loader = _AsWrittenLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(
                f"{path} is not a {what}: it must hold fields, one 'name: value' a line"
            )
        _note_lines(node, (), lines)
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not a valid {what}: {_yaml_problem(error)}") from None
    except RecursionError:
        raise UsageError(f"{path} is not a valid {what}: it is nested too deeply") from None
    return ConfigFile(path, what, values, lines)


def validate(model: type[Model], file: ConfigFile) -> Model:
    """Make ``model`` from the file. Raises UsageError that lists every problem with its line."""
    try:
        return model.model_validate(file.values)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda item: _line_of(file, item["loc"]) or 0)
        problems = [_describe(model, file, item) for item in found]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise UsageError(
        f"{file.path} is not a valid {file.what} ({count}):\n  " + "\n  ".join(problems)
    )


def _note_lines(node: yaml.Node, where: Location, lines: dict[Location, int]) -> None:
    """Record the line of every field and list item; refuse a field given twice."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here: Location = (*where, index)
            lines[here] = item.start_mark.line + 1
            _note_lines(item, here, lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(None, None, "a field name must be a word", key.start_mark)
        here = (*where, key.value)
        if here in lines:
            problem = f"{key.value!r} is given twice (first in line {lines[here]})"
            raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
        lines[here] = key.start_mark.line + 1
        _note_lines(value, here, lines)


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _line_of(file: ConfigFile, where: Location) -> int | None:
    """Line of the field, or of the innermost section around it that is in the file."""
    lines = (file.lines.get(where[:depth]) for depth in range(len(where), 0, -1))
    return next((line for line in lines if line), None)


def _describe(model: type[ConfigModel], file: ConfigFile, item: Any) -> str:
    """One problem as "line 4: node: unknown field; did you mean 'nodes'?"."""
    where: Location = tuple(part for part in item["loc"] if part != "[key]")
    line = _line_of(file, where)
    at = f"line {line}: " if line else ""
    field = ".".join(str(part) for part in where)
    if item["type"] == "extra_forbidden":
        return f"{at}{field}: unknown field; {_suggestion(model, where)}"
    if item["type"] == "missing":
        return f"{field}: missing; this field has no default"
    message = _IN_OUR_WORDS.get(item["type"], item["msg"].removeprefix("Value error, "))
    given = "" if isinstance(item["input"], (dict, list)) else f" (given: {item['input']!r})"
    return f"{at}{field}: {message[:1].lower()}{message[1:]}{given}"


def _suggestion(model: type[ConfigModel], where: Location) -> str:
    section: type[BaseModel] = model
    for part in where[:-1]:
        section = _section(section, str(part))
    known = [field.alias or name for name, field in section.model_fields.items()]
    close = difflib.get_close_matches(str(where[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _section(model: type[BaseModel], name: str) -> type[BaseModel]:
    annotation = model.model_fields[name].annotation
    candidates = (annotation, *get_args(annotation))
    return next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
