"""Horovod's collectives as tf.profiler and as our recorder saw them, on two real ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcprof.readers.nvtx_record import read_nvtx_record
from hpcprof.readers.spans_reader import read_span_file
from hpcprof.readers.xplane import read_tf_profile
from hpcprof.trace import columns as c
from tests.e2e import instrumented

pytestmark = pytest.mark.e2e

STEPS = range(4, 9)
GRADIENTS = 8  # of the model


def test_collectives_last_from_enqueue_to_done_as_the_recorder_saw_them(
    horovod_python: Path, tmp_path: Path
) -> None:
    run = instrumented.launched(
        horovod_python,
        "horovod_tape.py",
        tmp_path / "run",
        {"STEPS": "10"},
        ranks=2,
        tf_ranks="all",
        tf_steps=f"{STEPS[0]}-{STEPS[-1]}",
        op_steps=None,
    )
    for rank in (0, 1):
        own = read_span_file(run.paths.spans(rank), rank)
        folder = run.paths.tf_profile(rank)
        profile = read_tf_profile(folder, rank, own.anchors, None)
        assert profile.state.warnings == ()
        seen = profile.spans[profile.spans[c.KIND] == c.COLLECTIVE]
        assert len(seen) == GRADIENTS * len(STEPS)
        assert set(seen[c.OP]) == {c.ALLREDUCE}

        recorder = read_nvtx_record(run.paths.nvtx_record(rank), rank, None).spans
        recorder = recorder[recorder[c.KIND] == c.COLLECTIVE]
        begin, end = profile.steps[c.START_NS].iloc[0], profile.steps[c.END_NS].iloc[-1]
        recorder = recorder[recorder[c.START_NS].between(begin, end)]
        assert len(recorder) == len(seen)
        for column in (c.START_NS, c.END_NS):
            apart = np.sort(recorder[column].to_numpy()) - np.sort(seen[column].to_numpy())
            # Horovod's own range begins just after TensorFlow hands the operation over
            assert abs(np.median(apart)) < 1_000_000
