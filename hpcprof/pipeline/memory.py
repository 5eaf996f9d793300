"""Divides the memory of the ranks that tf.profiler recorded, from its files."""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.analyses.memory_split import MemorySplit, memory_splits
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.xplane import read_tf_memory
from hpcprof.trace.model import RankInfo


def memory_of_ranks(
    paths: ArtifactPaths, infos: Iterable[RankInfo]
) -> dict[int, tuple[MemorySplit, ...]]:
    """Rank → one split per device; only ranks in whose files an allocator wrote anything.

    A file carries marks of its own for the steps, so nothing else of the rank is needed.
    """
    splits = {}
    for info in infos:
        folder = paths.tf_profile(info.rank)
        if folder.is_dir():
            record, steps = read_tf_memory(folder, info.rank, info.training)
            found = memory_splits(record, steps, info.training)
            if found:
                splits[info.rank] = found
    return splits
