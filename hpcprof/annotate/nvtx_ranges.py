"""Our NVTX ranges and marks, in domain ``hpcprof``, when a profiler listens and nvtx is there."""

from __future__ import annotations

from typing import Any, Callable

from hpcprof.artifacts.span_format import NVTX_DOMAIN


class NvtxDomain:
    """Push, pop and mark in our domain. Ranges of one thread nest, as NVTX wants it."""

    def __init__(self, nvtx: Any) -> None:
        domain = nvtx.get_domain(NVTX_DOMAIN)
        self._attributes: dict[str, Any] = {}
        self._make_attributes = domain.get_event_attributes
        self._push = domain.push_range
        self.pop: Callable[[], Any] = domain.pop_range
        self._mark_in_domain = nvtx.mark

    def push(self, name: str) -> None:
        """Open a range. Attributes are kept per name: making them costs ten times the push."""
        attributes = self._attributes.get(name)
        if attributes is None:
            attributes = self._make_attributes(message=name)
            if len(self._attributes) < 1024:  # step names never repeat; do not grow for ever
                self._attributes[name] = attributes
        self._push(attributes)

    def mark(self, text: str) -> None:
        """Place an instant."""
        self._mark_in_domain(message=text, domain=NVTX_DOMAIN)


def open_domain(note: Callable[[str], None]) -> NvtxDomain | None:
    """The domain, or None with a note when the training's Python has no usable nvtx package."""
    try:
        import nvtx
    except Exception as error:  # a broken third-party package must never reach the training
        note(f"our NVTX ranges are missing: package nvtx cannot be imported ({error})")
        return None
    try:
        return NvtxDomain(nvtx)
    except Exception as error:
        note(f"our NVTX ranges are missing: package nvtx is too old or broken ({error})")
        return None
