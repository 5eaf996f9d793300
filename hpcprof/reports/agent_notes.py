"""Notes of the node agents as sentences: equal ones of several nodes once, and not too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MOST_NOTES = 8
_MOST_NODES = 3


def note_sentences(notes: Iterable[tuple[Sequence[str], str]]) -> list[str]:
    """One sentence for each of the first notes (nodes, text), and one that counts the others."""
    every = list(notes)
    sentences = [f"{_whose(nodes)}: {text}" for nodes, text in every[:_MOST_NOTES]]
    left = len(every) - _MOST_NOTES
    if left > 0:
        sentences.append(f"and {left} more of the node agents: quality.agent_notes, findings.json")
    return sentences


def _whose(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_MOST_NODES])
    if len(nodes) > _MOST_NODES:
        return f"agents of {len(nodes)} nodes ({shown}, …)"
    return f"agent{'s' if len(nodes) > 1 else ''} of {shown}"
