"""What a training recorded of itself beside its spans: nvtx.bin and tf.profiler's files.

Neither decides over the rank's state: both come on top of what every rank has. A source that was
not asked for is no source of the rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.readers.manifest_reader import RankManifest
from hpcprof.readers.nvtx_record import SOURCE as RECORDER
from hpcprof.readers.nvtx_record import read_nvtx_record
from hpcprof.readers.states import lost, recorder_state, with_steps
from hpcprof.readers.steps import assign_steps, step_numbers
from hpcprof.readers.xplane import read_tf_profile
from hpcprof.trace.columns import COLLECTIVE, KIND, NAME, STEP
from hpcprof.trace.frame import concat_spans, empty_spans
from hpcprof.trace.model import SourceState, Training

_HOROVOD_TYPE = ":Horovod"  # in XPlane a collective of Horovod is named by operation and type
_NO_LIBRARY = (
    "nothing in the training calls NVTX (a TensorFlow built for CUDA does, and a Horovod built "
    "with NVTX; the wheel tensorflow-cpu does not)"
)


class Recorded(NamedTuple):
    """Spans on the node's clock, with steps; ``state`` is None when it was not asked for."""

    spans: pd.DataFrame
    state: SourceState | None


def read_recorder(
    paths: ArtifactPaths,
    record: RankManifest,
    known: pd.DataFrame,
    training: Training | None,
    *,
    has_nsys: bool,
    pid: int | None,
) -> Recorded:
    """The ranges of our own recorder. ``known``: spans with the rank's steps, perhaps none.

    Our own ranges are among them only where ``known`` holds no step. With ``has_nsys`` the spans
    are left out: nsys saw the same. ``pid``: of the process that wrote spans.bin, None without.
    """
    rank = record.info.rank
    path = paths.nvtx_record(rank)
    if not path.exists():
        state = SourceState(RECORDER, manifest.NOT_PROFILED, _NO_LIBRARY)
        return Recorded(empty_spans(), state if record.recorder == "nvtx" else None)
    try:
        found = read_nvtx_record(path, rank, training)
    except InputError as error:
        text = str(error).replace(f"{paths.rank_folder(rank)}/", "")
        return Recorded(empty_spans(), lost(RECORDER, text))
    if pid is not None and found.pid != pid:
        # its times would fall into this training's steps, or into none, and nobody would know
        text = f"nvtx.bin is of process {found.pid} and spans.bin of {pid}: not of one training"
        return Recorded(empty_spans(), lost(RECORDER, text))
    state = _explained(recorder_state(found), training)
    if has_nsys:
        note = "nsys recorded the same ranges; those of the recorder are left out"
        return Recorded(empty_spans(), replace(state, warnings=(*state.warnings, note)))
    spans = with_own_steps(found.spans, known, found.own)
    return Recorded(spans, with_steps(state, spans))


def _explained(state: SourceState, training: Training | None) -> SourceState:
    """A recorder that heard nothing lacks nothing, where the hooks know that none was said."""
    why = (training.op_steps or "") if training else ""
    if state.state != manifest.EMPTY or not why.startswith("not available"):
        return state
    reason = f"the training has no NVTX ranges; names of operations: {why}"
    return replace(state, state=manifest.NOT_PROFILED, reason=reason)


def read_profile(
    paths: ArtifactPaths,
    record: RankManifest,
    known: pd.DataFrame,
    anchors: pd.DataFrame,
    training: Training | None,
) -> Recorded:
    """What tf.profiler recorded. ``known`` as above, and collectives that it saw as well.

    A collective of Horovod in a step in which ``known`` has any is left out: it is the same one.
    """
    rank = record.info.rank
    profile = read_tf_profile(paths.tf_profile(rank), rank, anchors, training)
    if profile.state.state == manifest.NOT_PROFILED:
        return Recorded(empty_spans(), None)
    spans = with_own_steps(profile.spans, known, profile.steps)
    seen_steps = known.loc[known[KIND] == COLLECTIVE, STEP].dropna().unique()
    is_tensor = spans[NAME].astype(str).str.contains(_HOROVOD_TYPE, regex=False)
    is_double = (spans[KIND] == COLLECTIVE) & is_tensor & spans[STEP].isin(seen_steps)
    kept: pd.DataFrame = spans[~is_double].reset_index(drop=True)
    return Recorded(kept, with_steps(profile.state, kept))


def with_own_steps(spans: pd.DataFrame, known: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """The spans with their steps: those of ``known``, else of ``copies``, which then come along."""
    if len(step_numbers(known)):
        return assign_steps(spans, known)
    copies = assign_steps(copies, copies)
    return concat_spans([assign_steps(spans, copies), copies])
