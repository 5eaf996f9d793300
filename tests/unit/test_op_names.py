"""The phase of an operation by its name.

Nearly all names were recorded in real trainings, with TensorFlow 2.15.1 (Keras 2, Horovod 0.28.1)
and 2.17.1 (Keras 3).
"""

from __future__ import annotations

import pytest

from hpcprof.readers.op_names import OpClass, classify
from hpcprof.trace.model import Training

pytestmark = pytest.mark.unit

CALL = "StatefulPartitionedCall/"
BODY = "while/body/_32/mynet_1/lstm_1/while/"


def one(name: str, *others: str, training: Training | None = None) -> OpClass:
    """The class of ``name`` in a rank that has the other names too."""
    return classify([name, *others], training)[0]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        # Keras 2, fit
        ("sequential/conv_a/Relu:_FusedConv2D", "forward"),
        ("sequential/head/MatMul/ReadVariableOp:ReadVariableOp", "forward"),
        ("sequential/bn/AssignMovingAvg/AssignSubVariableOp:AssignSubVariableOp", "forward"),
        ("sparse_categorical_crossentropy/weighted_loss/Sum:Sum", "forward"),
        ("AssignAddVariableOp_2:AssignAddVariableOp", "forward"),
        ("ArithmeticOptimizer/ReorderCastLikeAndValuePreserving_bool_Squeeze_1:Squeeze", "forward"),
        ("gradient_tape/sequential/bn/FusedBatchNormGradV3:FusedBatchNormGradV3", "backward"),
        ("gradient_tape/sparse_categorical_crossentropy/weighted_loss/Tile_1:Tile", "backward"),
        ("Adam/AssignSubVariableOp_4:AssignSubVariableOp", "optimizer"),
        ("Adam/sub_2/ReadVariableOp:ReadVariableOp", "optimizer"),
        ("adam_sub_2_readvariableop_resource:_Arg", "optimizer"),
        ("sequential_bn_readvariableop_1_resource:_Arg", "forward"),
        ("identity_8_retval_RetVal:_Retval", "forward"),
        ("IteratorGetNext:IteratorGetNext", "input"),
        ("iterator:_Arg", "input"),
        # Keras 2, an old optimizer
        ("Adam/Adam/update_1/ResourceApplyAdam:ResourceApplyAdam", "optimizer"),
        ("training/SGD/update/ResourceApplyKerasMomentum:ResourceApplyKerasMomentum", "optimizer"),
        # Keras 3, fit
        (f"{CALL}sequential_1/dropout_1/stateless_dropout/SelectV2:SelectV2", "forward"),
        (f"{CALL}compile_loss/sparse_categorical_crossentropy/Sum:Sum", "forward"),
        (f"{CALL}gradient_tape/sequential_1/bn_1/batchnorm/mul_1/Mul:Mul", "backward"),
        (f"{CALL}gradient_tape/compile_loss/mse/DynamicStitch:DynamicStitch", "backward"),
        (f"{CALL}adam/Sqrt_6:Sqrt", "optimizer"),
        (f"{CALL}loss_scale_optimizer/adam/Mul_6:Mul", "optimizer"),
        ("optional:OptionalFromValue", "input"),
        ("unknown_1:_Arg", "forward"),
        # a loss that is scaled, gradients that are clipped
        ("cond_1/then/_10/cond_1/SGD/clip_by_norm_3/Sqrt:Sqrt", "optimizer"),
        (f"{CALL}cond/then/_637/cond/sgd/strided_slice:StridedSlice", "optimizer"),
        (f"{CALL}IsFinite_4:IsFinite", "optimizer"),
        ("clip_by_global_norm/mul_1:Mul", "optimizer"),
        ("global_norm/L2Loss_1:L2Loss", "optimizer"),
        # recurrent layers: the gradient of a loop, and what the loop keeps for it
        (f"{CALL}mynet_1/lstm_1/{BODY}lstm_cell_1/MatMul:MatMul", "forward"),
        (f"{CALL}mynet_1/lstm_1/while/next_iteration/_144:NextIteration", "forward"),
        (f"{CALL}mynet_1/lstm_1/{BODY}gradient_tape/mynet_1/lstm_1/while/Shape:Shape", "forward"),
        ("while/body/_1/while/gradients/while_grad/gradients/while/add_grad/Sum:Sum", "forward"),
        (
            "gradients/while_grad/while_grad/body/_1/gradients/while_grad/gradients/while/"
            "MatMul_grad/MatMul:MatMul",
            "backward",
        ),
        (
            f"{CALL}gradient_tape/mynet_1/gru_1/while/mynet_1/gru_1/while_grad/body/_9/"
            "gradient_tape/mynet_1/gru_1/while/gradients/AddN_1:AddN",
            "backward",
        ),
        # a training step in a loop: several steps per execution
        ("while/body/_1/while/StatefulPartitionedCall/gradient_tape/m/d/MatMul:MatMul", "backward"),
        ("while/body/_1/while/gradient_tape/m/d/MatMul:MatMul", "backward"),
        ("while/body/_1/while/m/d/MatMul:MatMul", "forward"),
        ("while/body/_1/while/adam/Sqrt:Sqrt", "optimizer"),
        ("while/body/_1/while/IteratorGetNext:IteratorGetNext", "input"),
        # a whole function that XLA compiled, and its kernels on a GPU
        ("StatefulPartitionedCall:StatefulPartitionedCall", "compute"),
        ("XlaModule:#hlo_module=a_inference_one_step_on_data_1336,program_id=161#", "compute"),
        # beside the steps
        ("SaveV2:SaveV2", "checkpoint"),
        ("MergeV2Checkpoints:MergeV2Checkpoints", "checkpoint"),
        ("adam/w1_momentum/Initializer/zeros:Fill", "other"),
        ("EagerPyFunc:EagerPyFunc", "other"),
        ("batch_loss/write_summary:WriteSummary", "other"),
    ],
)
def test_the_phase_is_that_of_the_scope_or_the_type(name: str, phase: str) -> None:
    assert one(name).phase == phase


@pytest.mark.parametrize(
    "scope",
    [
        "DistributedGradientTape_Allreduce/cond_1/then/_8/DistributedGradientTape_Allreduce/cond_1/",
        "PartitionedCall/DistributedAdam_Allreduce/cond/then/_19/DistributedAdam_Allreduce/cond/",
    ],
)
def test_horovods_operations_are_allreduce_and_their_range_is_no_time_of_the_replica(
    scope: str,
) -> None:
    name = f"{scope}HorovodAllreduce_gradient_tape_sequential_head_MatMul_MatMul_0:HorovodAllreduce"
    found = one(name)
    assert (found.phase, found.op, found.activity) == ("allreduce", "allreduce", None)
    divided = one(f"{scope}truediv:RealDiv")
    assert (divided.phase, divided.op, divided.activity) == ("allreduce", None, "compute")


@pytest.mark.parametrize(
    ("op_type", "op"),
    [
        ("CollectiveReduceV2", "allreduce"),
        ("CollectiveReduceV3", "allreduce"),
        ("CollectiveReduceScatterV2", "reducescatter"),
        ("CollectiveGatherV2", "allgather"),
        ("CollectiveBcastSendV2", "broadcast"),
        ("CollectiveAllToAllV2", "alltoall"),
        ("NcclAllReduce", "allreduce"),
        ("_NcclReduceSend", "reduce"),
        ("HorovodGroupedAllreduce", "allreduce"),
        ("HorovodReducescatter", "reducescatter"),
    ],
)
def test_a_collective_is_told_by_its_type_also_in_the_optimizers_scope(
    op_type: str, op: str
) -> None:
    found = one(f"adam/{op_type}_1:{op_type}")
    assert (found.phase, found.op) == ("allreduce", op)


MIRRORED = {
    "sequential_1/conv_a_1/Relu:_FusedConv2D": ("forward", "compute", 0),
    "replica_1/sequential_1/conv_a_1/Relu:_FusedConv2D": ("forward", "compute", 1),
    "gradient_tape/replica_3/sequential_1/bn_1/moments/sub:Sub": ("backward", "compute", 3),
    "gradient_tape/sequential_1/bn_1/moments/sub:Sub": ("backward", "compute", 0),
    "adam/update_0_4/Sub_2:Sub": ("optimizer", "compute", 0),
    "adam/update_1/Sub_2:Sub": ("optimizer", "compute", 1),
    "adam/update_1_4/Square:Square": ("optimizer", "compute", 1),
    "update_1/AssignVariableOp:AssignVariableOp": ("optimizer", "compute", 1),
    "adam/CollectiveReduceV2_1:CollectiveReduceV2": ("allreduce", None, None),
    "adam/concat:ConcatV2": ("allreduce", "copy", 0),
    "adam/split_1:SplitV": ("allreduce", "copy", 0),
    "adam/Reshape_13:Reshape": ("allreduce", "copy", 0),
    "AddN:AddN": ("backward", "compute", None),
    "replica_1/div_no_nan/_16:_Recv#from=replica_1/div_no_nan,to=AddN_2,key=/job:localhost#": (
        *("forward", "copy", 1),
    ),
    "RemoteCall____inference__next_func_341:RemoteCall": ("input", None, None),
    "MultiDeviceIteratorGetNextFromShard:MultiDeviceIteratorGetNextFromShard": (
        *("input", None, None),
    ),
}


def test_the_replica_is_that_of_the_scope_or_of_the_updated_device() -> None:
    found = classify(MIRRORED, None)
    got = {name: (c.phase, c.activity, c.replica) for name, c in zip(MIRRORED, found, strict=True)}
    assert got == MIRRORED


def test_at_the_root_stands_replica_0_or_what_all_replicas_share() -> None:
    names = ["MatMul_3:MatMul", "replica_1/MatMul_1:MatMul", "Sum:Sum"]
    assert [each.replica for each in classify(names, None)] == [0, 1, None]


def test_without_replicas_update_1_is_a_variable_and_a_reshape_at_the_root_is_forward() -> None:
    update, reshape = classify(
        ["Adam/update_1/ResourceApplyAdam:ResourceApplyAdam", "Reshape:Reshape"], None
    )
    assert (update.phase, update.replica) == ("optimizer", 0)
    assert (reshape.phase, reshape.replica) == ("forward", 0)


@pytest.mark.parametrize(
    ("collective", "training", "phases"),
    [
        ("CollectiveReduceV2", None, ["allreduce", "forward"]),
        (
            "CollectiveReduceV2",
            Training(op_origins={"optimizer": ("concat", "Reshape")}),
            ["allreduce", "allreduce"],
        ),
        ("HorovodAllreduce", None, ["forward", "forward"]),
    ],
)
def test_packing_beside_a_collective_at_the_root_is_communication(
    collective: str, training: Training | None, phases: list[str]
) -> None:
    names = [f"{collective}:{collective}", "concat:ConcatV2", "Reshape:Reshape"]
    assert [each.phase for each in classify(names, training)] == ["allreduce", *phases]


def test_unscoped_names_have_the_phase_in_which_the_hooks_saw_them_made() -> None:
    origins = {
        "backward": (
            *("MatMul_2", "random_normal/RandomStandardNormal", "PartitionedCall"),
            "replica_1/MatMul_4",
        ),
        "optimizer": ("cond", "All"),
    }
    training = Training(op_origins=origins)
    names = {
        "MatMul_2:MatMul": "backward",
        f"{CALL}MatMul_2:MatMul": "backward",
        "replica_1/MatMul_4:MatMul": "backward",
        "replica_1/MatMul_2:MatMul": "forward",  # replicas count for themselves
        "MatMul:MatMul": "forward",
        "random_normal/RandomStandardNormal:RandomStandardNormal": "backward",
        "PartitionedCall/while/body/_3/while/MatMul:MatMul": "backward",
        "cond/then/_5/cond/ReadVariableOp:ReadVariableOp": "optimizer",
        "All:All": "optimizer",
        "gradient_tape/m/d/MatMul:MatMul": "backward",
    }
    found = classify(names, training)
    assert {name: c.phase for name, c in zip(names, found, strict=True)} == names
    without = classify(names, None)
    assert [c.phase for c in without][:3] == ["forward"] * 3


def test_a_function_of_tf_data_is_work_beside_the_training() -> None:
    training = Training(op_origins={"input": ("truediv", "resize/ResizeBilinear", "Cast")})
    names = [
        "truediv:RealDiv",
        "resize/ResizeBilinear:ResizeBilinear",
        "m/d/MatMul:MatMul",
        "adam/Cast:Cast",
        "IteratorGetNext:IteratorGetNext",
        f"{CALL}Cast:Cast",  # of Keras 3's metrics
    ]
    found = classify(names, training)
    assert [each.is_background for each in found] == [True, True, *[False] * 4]
    activities = [None, None, "compute", "compute", "input", "compute"]
    assert [each.activity for each in found] == activities
    assert found[0].replica is None


def test_compiling_is_work_beside_the_training_and_in_no_phase_of_it() -> None:
    names = [
        "XlaCompile:#module=__inference_one_step_on_data_1336[].1093#",
        "XlaPass:#name=algsimp,module=a_inference_one_step_on_data_1336__.1093,program_id=161#",
    ]
    found = classify(names, None)
    assert [(each.phase, each.is_background) for each in found] == [("other", True)] * 2


def test_the_optimizers_own_name_is_its_scope_whatever_it_is() -> None:
    name = f"{CALL}my_rule/mul_3:Mul"
    assert one(name).phase == "forward"
    known = Training(optimizer="MyRule", optimizer_scopes=("my_rule", "MyRule"))
    assert one(name, training=known).phase == "optimizer"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("sequential/conv_a/Relu:_FusedConv2D", "conv_a"),
        (f"{CALL}sequential_1/conv_a_1/convolution:Conv2D", "conv_a"),
        ("gradient_tape/replica_1/sequential/head/MatMul/MatMul_1:MatMul", "head"),
        ("sequential/dense_1/MatMul:MatMul", "dense_1"),
        ("Adam/head/mul:Mul", None),
        ("compile_loss/mse/Sum:Sum", None),
    ],
)
def test_the_layer_is_one_that_the_model_has(name: str, layer: str | None) -> None:
    training = Training(layers=("conv_a", "head", "dense", "dense_1"))
    assert one(name, training=training).layer == layer
    assert one(name).layer is None


def test_a_name_without_a_type_and_an_empty_one_do_no_harm() -> None:
    assert [each.phase for each in classify(["", "x", ":", "/", "a/:b"], None)] == ["forward"] * 5
    assert classify([], None) == []


def test_the_type_ends_where_attributes_begin() -> None:
    name = "Add/_5:_Send#from=Add,to=update_1/AssignVariableOp,key=/job:localhost/replica:0#"
    found = one(name)
    assert (found.op_type, found.activity) == ("_Send", "copy")
