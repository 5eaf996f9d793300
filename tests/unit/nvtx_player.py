"""Plays NVTX to the recorder: loads it as NVTX does and calls what it has subscribed to.

python -m tests.unit.nvtx_player LIBRARY, Python text on stdin that finds a ``player``
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# numbers of NVTX 3: modules, and the functions in them (nvtxDetail/nvtxTypes.h)
CORE, CORE2 = 1, 5
_SIZES = {CORE: 16, CORE2: 16}
_NUMBERS = {
    **{"MarkA": (CORE, 2), "RangeStartA": (CORE, 5), "RangeEnd": (CORE, 7)},
    **{"RangePushEx": (CORE, 8), "RangePushA": (CORE, 9), "RangePushW": (CORE, 10)},
    **{"RangePop": (CORE, 11), "DomainMarkEx": (CORE2, 1), "DomainRangeStartEx": (CORE2, 2)},
    **{"DomainRangeEnd": (CORE2, 3), "DomainRangePushEx": (CORE2, 4), "DomainRangePop": (CORE2, 5)},
    **{"DomainRegisterStringA": (CORE2, 10), "DomainRegisterStringW": (CORE2, 11)},
    **{"DomainCreateA": (CORE2, 12), "DomainCreateW": (CORE2, 13)},
}
_RESULTS: dict[str, Any] = {
    "RangeStartA": ctypes.c_uint64,
    "DomainRangeStartEx": ctypes.c_uint64,
    "RangePushEx": ctypes.c_int,
    "RangePushA": ctypes.c_int,
    "RangePushW": ctypes.c_int,
    "RangePop": ctypes.c_int,
    "DomainRangePushEx": ctypes.c_int,
    "DomainRangePop": ctypes.c_int,
    "DomainRegisterStringA": ctypes.c_void_p,
    "DomainRegisterStringW": ctypes.c_void_p,
    "DomainCreateA": ctypes.c_void_p,
    "DomainCreateW": ctypes.c_void_p,
}
_ID_CALLS = ("RangeEnd", "DomainRangeEnd")


class _Payload(ctypes.Union):
    _fields_ = (("i64", ctypes.c_int64), ("f64", ctypes.c_double), ("u32", ctypes.c_uint32))


class Event(ctypes.Structure):
    """nvtxEventAttributes_t."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", _Payload),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    )


class _Callbacks(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("table_of", ctypes.c_void_p))


_EXPORT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_TABLE_OF = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)


class Player:
    """One copy of NVTX in this process, with the recorder as its listener."""

    def __init__(self, library: Path | str) -> None:
        self.library = ctypes.CDLL(str(library))
        self._places = {module: (ctypes.c_void_p * n)() for module, n in _SIZES.items()}
        self._tables = {
            module: (ctypes.c_void_p * n)(
                *(ctypes.addressof(self._places[module]) + 8 * i for i in range(n))
            )
            for module, n in _SIZES.items()
        }
        self._table_of = _TABLE_OF(self._give_table)
        self._callbacks = _Callbacks(
            ctypes.sizeof(_Callbacks), ctypes.cast(self._table_of, ctypes.c_void_p)
        )
        self._export = _EXPORT(lambda number: ctypes.addressof(self._callbacks))
        self.is_attached = bool(self.library.InitializeInjectionNvtx2(self._export))
        self._texts: list[Any] = []

    def _give_table(self, module: int, table: Any, size: Any) -> int:
        if module not in _SIZES:
            return 0
        table[0] = ctypes.addressof(self._tables[module])
        size[0] = _SIZES[module]
        return 1

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the recorder's function; None when it has not subscribed to it."""
        module, number = _NUMBERS[name]
        address = self._places[module][number]
        if not address:
            return None
        kinds = [ctypes.c_uint64 if name in _ID_CALLS else ctypes.c_void_p] * len(arguments)
        function = ctypes.CFUNCTYPE(_RESULTS.get(name), *kinds)(address)
        return function(*(self._passed(argument) for argument in arguments))

    def _passed(self, value: Any) -> Any:
        if isinstance(value, bytes):
            value = ctypes.create_string_buffer(value)
        elif isinstance(value, str):
            value = ctypes.create_unicode_buffer(value)
        elif not isinstance(value, Event):
            return value
        self._texts.append(value)
        return ctypes.addressof(value)

    def event(self, message: bytes | int, payload: float | None = None) -> Event:
        """Attributes with a text or a registered string (int), and a payload of int64 or double."""
        event = Event(version=3, size=ctypes.sizeof(Event))
        if isinstance(message, bytes):
            event.message_type, event.message = 1, self._passed(message)
        else:
            event.message_type, event.message = 3, message
        if isinstance(payload, float):
            event.payload_type, event.payload.f64 = 3, payload
        elif payload is not None:
            event.payload_type, event.payload.i64 = 2, payload
        return event

    def push(self, domain: int, message: bytes | int, payload: float | None = None) -> None:
        """nvtxDomainRangePushEx."""
        self.call("DomainRangePushEx", domain, self.event(message, payload))

    def pop(self, domain: int) -> None:
        """nvtxDomainRangePop."""
        self.call("DomainRangePop", domain)

    def flush(self) -> None:
        """What annotate does at the end of a step."""
        self.library.hpcprof_nvtx_flush()


def main(read: Callable[[], str] = sys.stdin.read) -> None:
    """Run the text with a player."""
    exec(read(), {"player": Player(sys.argv[1])})


if __name__ == "__main__":
    main()
