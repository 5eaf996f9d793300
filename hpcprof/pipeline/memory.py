"""Divides the memory of the ranks that tf.profiler recorded, from its files."""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.analyses.memory_split import MemorySplit, memory_splits
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.xplane import read_tf_profile
from hpcprof.trace.frame import anchors_frame
from hpcprof.trace.model import RankInfo


def memory_of_ranks(
    paths: ArtifactPaths, infos: Iterable[RankInfo]
) -> dict[int, tuple[MemorySplit, ...]]:
    """Rank → one split per device; only ranks in whose files an allocator wrote anything.

    A file carries marks of its own for the steps, so nothing else of the rank is needed.
    """
    splits = {}
    anchors = anchors_frame({"seq": [], "before_ns": [], "after_ns": [], "realtime_ns": []})
    for info in infos:
        folder = paths.tf_profile(info.rank)
        if folder.is_dir():
            profile = read_tf_profile(folder, info.rank, anchors, info.training)
            found = memory_splits(profile.memory, profile.steps, info.training)
            if found:
                splits[info.rank] = found
    return splits
