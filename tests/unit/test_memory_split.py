"""How the memory of a device at its peak is divided, from blocks written down by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from hpcprof.analyses import memory_split as m
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame
from hpcprof.trace.memory import BLOCK_COLUMNS, LEVEL_COLUMNS, MemoryRecord
from hpcprof.trace.model import Training

pytestmark = pytest.mark.unit

KIB = 1024
WEIGHT, SLOT = 4 * KIB, 4 * KIB
VARIABLES = (
    ("kernel", WEIGHT, "weight", True),
    ("moving mean", 512, "weight", False),
    ("momentum", SLOT, "optimizer", False),
)
STEPS = ((1000, 1900), (2000, 2900), (3000, 3900))
FIRST, LAST = 2000, 2900  # of the step whose peak is taken below


class Blocks:
    """Blocks of one allocator; the levels follow from them."""

    def __init__(self, allocator: str = "GPU_0_bfc", before: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.allocator = allocator
        self.before = before  # bytes that were given away before anybody watched

    def add(self, start: int, end: int | None, nbytes: int, **more: Any) -> Blocks:
        row: dict[str, Any] = dict.fromkeys(BLOCK_COLUMNS, "")
        row |= {"op_end_ns": 0, "is_background": False, "is_older": False}
        row |= {"start_ns": start, "end_ns": 9000 if end is None else end}
        row |= {"bytes": nbytes, "requested_bytes": nbytes, "allocator": self.allocator}
        self.rows.append(row | {"is_freed": end is not None} | more)
        return self

    def record(self) -> MemoryRecord:
        blocks = pd.DataFrame(self.rows)
        changes = [(row["start_ns"], row["bytes"]) for row in self.rows if not row["is_older"]]
        changes += [(row["end_ns"], -row["bytes"]) for row in self.rows if row["is_freed"]]
        level, levels = self.before, []
        for time, change in sorted(changes):
            level += change
            levels.append((time, self.allocator, level, 10**6, 10**7, 0.25))
        columns = pd.Index(LEVEL_COLUMNS)
        return MemoryRecord(blocks, pd.DataFrame(levels, columns=columns))


def _variables(blocks: Blocks) -> Blocks:
    """Weights and optimizer state, made before the first step and never let go."""
    blocks.add(10, None, WEIGHT, phase=c.FORWARD).add(11, None, 512, phase=c.FORWARD)
    return blocks.add(12, None, SLOT, phase=c.OPTIMIZER)


def _spans() -> pd.DataFrame:
    return spans_frame(
        {
            "start_ns": [start for start, _ in STEPS],
            "end_ns": [end for _, end in STEPS],
            "kind": c.STEP_KIND,
            "name": "step",
            "step": list(range(30, 30 + len(STEPS))),
            "source": "tfprof",
        }
    )


def _split(blocks: Blocks, **training: Any) -> m.MemorySplit:
    known = Training(variables=VARIABLES, **training)
    (found,) = m.memory_splits(blocks.record(), _spans(), known)
    return found


def _parts(found: m.MemorySplit) -> dict[str, int]:
    assert found.status == m.OK, found.reason
    assert sum(found.bytes_by_class.values()) == found.total_bytes
    return {kind: nbytes for kind, nbytes in found.bytes_by_class.items() if nbytes}


def test_each_kind_of_block_is_found_at_the_fullest_moment_of_the_fullest_step() -> None:
    blocks = _variables(Blocks())
    blocks.add(1990, 2500, 3000)  # the batch
    blocks.add(2100, 2600, 9000, op="m/a", phase=c.FORWARD, op_end_ns=2150)
    blocks.add(2200, 2600, 8000, op="m/a", phase=c.BACKWARD, freed_in=c.BACKWARD)
    blocks.add(2210, 2600, WEIGHT, op="m/a", phase=c.BACKWARD, freed_in=c.OPTIMIZER)
    blocks.add(2220, 2600, 700, op="g/Horovod", phase=c.ALLREDUCE)
    blocks.add(2230, 2240, 600, op="m/a", phase=c.BACKWARD, op_end_ns=2250)
    blocks.add(3100, 3200, 50)
    found = _split(blocks)
    assert _parts(found) == {
        m.WEIGHTS: WEIGHT + 512,
        m.OPTIMIZER_STATE: SLOT,
        m.GRADIENTS: WEIGHT,
        m.FEATURE_MAPS: 9000,
        m.ACTIVATION_GRADIENTS: 8000,
        m.WORKSPACE: 600,
        m.COMMUNICATION: 700,
        m.OTHER: 3000,
    }
    assert (found.step, found.at_ns, found.older_bytes) == (31, 2230, 0)
    assert found.largest[0] == m.Tensor(m.FEATURE_MAPS, "m/a", 9000)
    assert (found.peak_bytes, found.limit_bytes) == (10**6, 10**7)


def test_a_block_of_a_weights_size_that_the_backward_pass_lets_go_of_is_no_gradient() -> None:
    blocks = _variables(Blocks()).add(2100, 2200, WEIGHT, phase=c.BACKWARD, freed_in=c.BACKWARD)
    assert _parts(_split(blocks))[m.ACTIVATION_GRADIENTS] == WEIGHT


def test_an_output_that_outlives_its_operation_is_no_workspace() -> None:
    blocks = _variables(Blocks()).add(2100, 2200, 900, phase=c.FORWARD, op_end_ns=2150)
    assert _parts(_split(blocks))[m.FEATURE_MAPS] == 900


def test_what_the_allocator_gives_more_than_was_asked_for_is_padding() -> None:
    blocks = _variables(Blocks())
    blocks.add(2100, 2200, 4096, phase=c.FORWARD, requested_bytes=3000)
    parts = _parts(_split(blocks))
    assert (parts[m.FEATURE_MAPS], parts[m.PADDING]) == (3000, 1096)


def test_batches_that_tf_data_prepares_are_no_feature_maps() -> None:
    blocks = _variables(Blocks())
    blocks.add(2100, 2200, 900, op="truediv", phase=c.FORWARD, is_background=True)
    # one that waits for the next step, and has a weight's size by chance
    blocks.add(1950, 3100, WEIGHT, op="truediv", phase=c.FORWARD, is_background=True)
    parts = _parts(_split(blocks))
    assert parts[m.OTHER] == 900 + WEIGHT
    assert m.FEATURE_MAPS not in parts


@pytest.mark.parametrize("old_ends", [2150, 2250])
def test_a_variable_that_is_replaced_is_counted_once_before_and_after(old_ends: int) -> None:
    blocks = Blocks().add(11, None, 512).add(12, None, SLOT, phase=c.OPTIMIZER)
    # the old value goes before or after the moment of the peak, 2200
    blocks.add(13, old_ends, WEIGHT, freed_in=c.BACKWARD)
    blocks.add(2100, None, WEIGHT, op="sgd/AssignSub", phase=c.OPTIMIZER)
    blocks.add(2200, 2300, 50_000, phase=c.FORWARD)
    parts = _parts(_split(blocks))
    assert parts[m.WEIGHTS] == WEIGHT + 512
    assert parts.get(m.WORKSPACE, 0) == (0 if old_ends < 2200 else WEIGHT)


def test_a_gradient_that_becomes_the_weight_is_a_gradient_until_then() -> None:
    blocks = Blocks().add(11, None, 512).add(12, None, SLOT, phase=c.OPTIMIZER)
    blocks.add(13, 2400, WEIGHT, freed_in=c.OPTIMIZER)
    blocks.add(2100, None, WEIGHT, op="gradient_tape/a", phase=c.BACKWARD)
    blocks.add(2200, 2300, 50_000, phase=c.FORWARD)
    parts = _parts(_split(blocks))
    assert (parts[m.WEIGHTS], parts[m.GRADIENTS]) == (WEIGHT + 512, WEIGHT)


def test_horovods_buffer_is_communication_whatever_its_setting() -> None:
    for settings, nbytes in (({}, 128 * 2**20), ({"HOROVOD_FUSION_THRESHOLD": "65536"}, 65536)):
        blocks = _variables(Blocks()).add(20, None, nbytes).add(2100, 2200, 900, phase=c.FORWARD)
        parts = _parts(_split(blocks, horovod={"settings": settings}))
        assert parts[m.COMMUNICATION] == nbytes
        assert _parts(_split(blocks))[m.OTHER] == nbytes  # without Horovod it is anything


def test_blocks_that_were_there_before_are_the_variables_first_and_the_rest_other() -> None:
    # 512 of 768 bytes, as the allocator gives multiples of 256: nobody saw these chunks
    blocks = Blocks(before=WEIGHT + 512 + SLOT + 7000).add(2100, 2200, 900, phase=c.FORWARD)
    blocks.add(2300, 2400, 10)
    found = _split(blocks)
    assert _parts(found) == {
        m.WEIGHTS: WEIGHT + 512,
        m.OPTIMIZER_STATE: SLOT,
        m.FEATURE_MAPS: 900,
        m.OTHER: 7000,
    }
    assert found.older_bytes == WEIGHT + 512 + SLOT + 7000


def test_too_little_for_the_variables_is_unclassified_and_not_guessed() -> None:
    blocks = Blocks(before=WEIGHT).add(2100, 2200, 900, phase=c.FORWARD).add(2300, 2400, 10)
    found = _split(blocks)
    assert _parts(found) == {m.FEATURE_MAPS: 900, m.UNCLASSIFIED: WEIGHT}
    assert found.unclassified_frac == pytest.approx(WEIGHT / (WEIGHT + 900))


@pytest.mark.parametrize(("op", "phase"), [("cluster_0", c.COMPUTE_PHASE), ("", "")])
def test_the_memory_of_a_compiled_cluster_is_unclassified(op: str, phase: str) -> None:
    blocks = _variables(Blocks()).add(2100, 2200, 900, op=op, phase=phase)
    assert _parts(_split(blocks))[m.UNCLASSIFIED] == 900


def test_several_gpus_are_divided_each_and_the_hosts_memory_is_left_out() -> None:
    records = []
    for allocator in ("GPU_1_bfc", "gpu_host_bfc", "GPU_0_bfc"):
        blocks = _variables(Blocks(allocator)).add(2100, 2200, 900, phase=c.FORWARD)
        records.append(blocks.record())
    both = MemoryRecord(
        pd.concat([record.blocks for record in records], ignore_index=True),
        pd.concat([record.levels for record in records], ignore_index=True),
    )
    found = m.memory_splits(both, _spans(), Training(variables=VARIABLES))
    assert [split.allocator for split in found] == ["GPU_0_bfc", "GPU_1_bfc"]
    assert [split.bytes_by_class[m.WEIGHTS] for split in found] == [WEIGHT + 512] * 2


def test_without_knowing_the_variables_nothing_is_divided() -> None:
    blocks = _variables(Blocks()).add(2100, 2200, 900, phase=c.FORWARD)
    for training in (None, Training(), Training(variables=(("m", 4, "metric", False),))):
        (found,) = m.memory_splits(blocks.record(), _spans(), training)
        assert found.status == m.INSUFFICIENT
        assert "no hook saw the variables" in found.reason
        assert found.bytes_by_class == {}


def test_without_a_step_nothing_is_divided() -> None:
    blocks = _variables(Blocks()).add(20, 30, 900, phase=c.FORWARD)
    found = _split(blocks)
    assert (found.status, found.reason) == (m.INSUFFICIENT, "no step was watched")


def test_lost_returns_are_told() -> None:
    record = _variables(Blocks(before=-WEIGHT)).add(2100, 2200, 9, phase=c.FORWARD).record()
    (found,) = m.memory_splits(record, _spans(), Training(variables=VARIABLES))
    assert found.status == m.INSUFFICIENT
    assert "lost returns of blocks" in found.reason


def test_where_nobody_watched_there_is_no_split() -> None:
    assert m.memory_splits(MemoryRecord(), _spans(), Training(variables=VARIABLES)) == ()
