"""What fills the memory of the devices at its peak, in words and as tables.

From the record in findings.json; records of earlier versions say nothing of it, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcprof.reports.table import Table
from hpcprof.units import nbytes, percent

_SHOWN_FRAC = 0.01
_MOST_CLASSES = 5  # on the screen
_UNTRUSTED_FRAC = 0.05  # of the peak is unclassified
_MAX_ROWS = 64


def memory_facts(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The most that was in use, and one line about the fullest device that was watched."""
    splits, peaks = _judged(record), _peaks(record)
    if peaks:
        most = max(peaks, key=lambda peak: peak[2])
        text = f"at most {nbytes(most[2])} in use by TensorFlow (rank {most[0]}, {most[1]})"
        if len(peaks) > 1:
            text += f"; on the emptiest of {len(peaks)} devices {nbytes(min(p[2] for p in peaks))}"
        yield "memory", text
    if not splits:
        return
    fullest = _fullest(splits)
    of = f" of {nbytes(fullest['limit_bytes'])}" if fullest["limit_bytes"] else ""
    shares = ", ".join(
        f"{kind} {percent(size / fullest['total_bytes'])}"
        for kind, size in _by_size(fullest)[:_MOST_CLASSES]
    )
    where = f"rank {fullest['rank']}, {fullest['allocator']}, step {fullest['step']}"
    label = "" if peaks else "memory"
    yield label, f"{nbytes(fullest['total_bytes'])}{of} at the peak ({where}): {shares}"
    for note in _doubts(fullest):
        yield "", note


def memory_not_measured(record: dict[str, Any]) -> Iterator[str]:
    """Why the memory of a device that was watched could not be divided."""
    for split in record.get("memory") or []:
        if split["status"] != "ok":
            whose = f"rank {split['rank']} ({split['allocator']})"
            yield f"what fills the memory of {whose}: {split['reason']}"


def memory_tables(record: dict[str, Any]) -> Iterator[Table]:
    """The most of each device, all watched ones by class, the largest blocks of the fullest one."""
    if _peaks(record):
        yield _peak_table(record)
    splits = _judged(record)
    if not splits:
        return
    kinds = [
        kind
        for kind in splits[0]["bytes_by_class"]
        if any(_share(split, kind) >= _SHOWN_FRAC for split in splits)
    ]
    rows = tuple(
        (
            *(str(split["rank"]), split["allocator"], str(split["step"])),
            *(nbytes(split["total_bytes"]), nbytes(split["limit_bytes"])),
            *(
                f"{nbytes(split['bytes_by_class'][kind])} ({_percent(split, kind)})"
                for kind in kinds
            ),
        )
        for split in splits[:_MAX_ROWS]
    )
    note = (
        "The fullest moment of the watched steps; all classes add up to what the allocator said "
        "was in use. Outside of it: CUDA's context, the buffers of cuDNN and NCCL."
    )
    if len(splits) > _MAX_ROWS:
        note += f" The first {_MAX_ROWS} of {len(splits)} devices are shown."
    for text in sorted({text for split in splits for text in _doubts(split)}):
        note += f" On some of them {text}."
    heads = ("rank", "allocator", "step", "in use", "limit", *kinds)
    yield Table("memory at the peak", heads, rows, note, text_columns=(0, 1))
    yield _largest_table(_fullest(splits))


def _peaks(record: dict[str, Any]) -> list[tuple[int, str, int]]:
    """(rank, device, most bytes that TensorFlow had in use) of every device that told."""
    return [
        (info["rank"], device, peak)
        for info in record["quality"]["ranks"]
        for device, peak in ((info.get("training") or {}).get("memory_peak_bytes") or {}).items()
    ]


def _peak_table(record: dict[str, Any]) -> Table:
    peaks = _peaks(record)
    rows = tuple((str(rank), device, nbytes(peak)) for rank, device, peak in peaks[:_MAX_ROWS])
    note = (
        "The most that TensorFlow's tensors used until the last look at it. nvidia-smi shows more: "
        "what TensorFlow reserves."
    )
    if len(peaks) > _MAX_ROWS:
        note += f" The first {_MAX_ROWS} of {len(peaks)} devices are shown."
    heads = ("rank", "device", "in use at most")
    return Table("memory of each device", heads, rows, note, text_columns=(0, 1))


def _largest_table(split: dict[str, Any]) -> Table:
    rows = tuple(
        (nbytes(size), kind, operation or "a variable, or nobody knows")
        for kind, operation, size in split["largest"]
    )
    note = f"Of rank {split['rank']}, {split['allocator']}, step {split['step']}."
    return Table(
        "largest blocks at the peak", ("size", "class", "made for"), rows, note, text_columns=(1, 2)
    )


def _judged(record: dict[str, Any]) -> list[dict[str, Any]]:
    splits = record.get("memory") or []
    return [split for split in splits if split["status"] == "ok" and split["total_bytes"]]


def _fullest(splits: list[dict[str, Any]]) -> dict[str, Any]:
    return max(splits, key=lambda split: split["total_bytes"])


def _by_size(split: dict[str, Any]) -> list[tuple[str, int]]:
    classes = split["bytes_by_class"].items()
    shown = [(kind, size) for kind, size in classes if _share(split, kind) >= _SHOWN_FRAC]
    return sorted(shown, key=lambda item: -item[1])


def _share(split: dict[str, Any], kind: str) -> float:
    return float(split["bytes_by_class"].get(kind, 0) / split["total_bytes"])


def _percent(split: dict[str, Any], kind: str) -> str:
    return percent(_share(split, kind))


def _doubts(split: dict[str, Any]) -> Iterator[str]:
    if (split["unclassified_frac"] or 0) >= _UNTRUSTED_FRAC:
        yield (
            f"{percent(split['unclassified_frac'])} of it is unclassified (XLA has one block for "
            "all it needs): the division is not to be trusted"
        )
    if split["older_bytes"]:
        yield (
            "watching began after the model was built: what is older is divided by the sizes of "
            "its variables"
        )
