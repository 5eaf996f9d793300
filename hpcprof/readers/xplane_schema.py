"""The messages of an XPlane file, declared here: TensorFlow is not needed to read what it wrote.

Field numbers are those of ``xplane.proto`` of TensorFlow (tsl/profiler/protobuf), Apache-2.0. What
we do not read is not declared; protobuf skips it.
"""

from __future__ import annotations

import functools
from typing import Any

from hpcprof.errors import EnvironmentLacksError

_PACKAGE = "hpcprof.xplane"
_INT64, _UINT64, _DOUBLE, _STRING, _BYTES = 3, 4, 1, 9, 12  # types of descriptor.proto
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3

# message → (field, number, type or message). A trailing * means repeated, a leading | a member of
# the message's one oneof; a map field is a repeated message of key and value
_MESSAGES: dict[str, tuple[tuple[str, int, int | str], ...]] = {
    "Stat": (
        ("metadata_id", 1, _INT64),
        ("|double_value", 2, _DOUBLE),
        ("|uint64_value", 3, _UINT64),
        ("|int64_value", 4, _INT64),
        ("|str_value", 5, _BYTES),  # a string, of which TensorFlow does not check the encoding
        ("|bytes_value", 6, _BYTES),
        ("|ref_value", 7, _UINT64),
    ),
    "Event": (
        ("metadata_id", 1, _INT64),
        ("|offset_ps", 2, _INT64),
        ("|num_occurrences", 5, _INT64),
        ("duration_ps", 3, _INT64),
        ("stats*", 4, "Stat"),
    ),
    "Line": (
        ("id", 1, _INT64),
        ("name", 2, _STRING),
        ("timestamp_ns", 3, _INT64),
        ("events*", 4, "Event"),
        ("display_name", 11, _STRING),
    ),
    "EventMetadata": (("id", 1, _INT64), ("name", 2, _BYTES), ("display_name", 4, _BYTES)),
    "StatMetadata": (("id", 1, _INT64), ("name", 2, _BYTES)),
    "EventEntry": (("key", 1, _INT64), ("value", 2, "EventMetadata")),
    "StatEntry": (("key", 1, _INT64), ("value", 2, "StatMetadata")),
    "Plane": (
        ("id", 1, _INT64),
        ("name", 2, _STRING),
        ("lines*", 3, "Line"),
        ("event_metadata*", 4, "EventEntry"),
        ("stat_metadata*", 5, "StatEntry"),
        ("stats*", 6, "Stat"),
    ),
    "Space": (
        ("planes*", 1, "Plane"),
        ("errors*", 2, _STRING),
        ("warnings*", 3, _STRING),
        ("hostnames*", 4, _STRING),
    ),
}


@functools.cache
def space_class() -> Any:
    """The class of a whole file's message.

    Raises EnvironmentLacksError when the package protobuf is missing.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise EnvironmentLacksError(
            "what tf.profiler recorded is read with the package protobuf, which is not installed: "
            "pip install 'hpcprof[xplane]'"
        ) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="hpcprof/xplane.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(field.startswith("|") for field, _, _ in fields):
            message.oneof_decl.add(name="value")
        for field, number, kind in fields:
            added: Any = message.field.add(name=field.strip("|*"), number=number)
            added.label = _REPEATED if field.endswith("*") else _OPTIONAL
            if field.startswith("|"):
                added.oneof_index = 0
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Space"))
