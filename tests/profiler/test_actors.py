"""Reading MindSpore's actor-set dumps."""

from __future__ import annotations

import pytest

from profiler.read.mindspore.actors import ActorSetError, Source, read_actor_set, read_signatures
from tests.profiler.actor_text import K, actor_set_text, two_layers


def test_sizes_sources_and_sharing_are_read() -> None:
    graph = read_actor_set(two_layers())
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    reshape, adam = kernels["Default/net-Net/Reshape-op0"], kernels["Default/optimizer-Adam/Adam-op1"]
    assert not reshape.launched
    assert reshape.refs == {0: 0}
    assert reshape.inputs[0] == Source("kernel", "Expand/MatMul-op0", 0)
    assert adam.inputs[0] == Source("stored", "layers.1.weight")
    assert adam.updates == {0, 1}
    assert adam.after == {"Default/optimizer-Adam/Adam-op0"}
    assert adam.outputs == (300, 300)
    assert graph.host == {"x": 64}
    assert graph.stored["mean.0"] == 300
    assert graph.constants == {"Default/data-7", "Default/data-9"}
    assert graph.results == {Source("kernel", "Default/net-Net/ReduceMean-op0", 0)}
    assert not graph.static_memory


def test_each_input_of_the_graph_goes_to_the_kernel_that_it_is_for() -> None:
    """The kernels' own arrows say output 0 of the data source, whichever input it is."""
    kernels = [K("Default/Reshape-op0", ["@ids"], [8]), K("Default/Reshape-op1", ["@targets"], [8])]
    graph = read_actor_set(actor_set_text(kernels, {}, {"ids": 8, "targets": 8}, ["Default/Reshape-op1:0"]))
    assert [kernel.inputs[0] for kernel in graph.kernels] == [Source("host", "ids"), Source("host", "targets")]


def test_memory_planned_at_compile_time_is_noticed() -> None:
    text = actor_set_text([K("Default/Add-op0", ["@x"], [8])], {}, {"x": 8}, ["Default/Add-op0:0"], somas=1)
    assert read_actor_set(text).static_memory


@pytest.mark.parametrize("keep", [0, 40, 400])
def test_a_dump_cut_short_is_an_error(keep: int) -> None:
    with pytest.raises(ActorSetError):
        read_actor_set(two_layers()[:keep])


def test_a_missing_input_is_an_error_that_names_the_kernel() -> None:
    text = two_layers().replace("from_node_name:mean.1", "from_nobody")
    with pytest.raises(ActorSetError, match="Adam-op1"):
        read_actor_set(text)


def test_actors_of_other_kinds_are_refused() -> None:
    text = two_layers().replace("[Super kernel actors:0]", "[Super kernel actors:1]\n\tactor_name:s\tactor_id:7")
    with pytest.raises(ActorSetError, match="Super kernel"):
        read_actor_set(text)


def test_shapes_and_types_are_read_and_scalars_left_out() -> None:
    text = """
%36 = kernel_graph0:Split-op0(%35[0], I64(3), I64(2))
	# shape : <(32, 4)> <NoShape> <()> <TupleShape(NoShape, NoShape)> -> <(32, 2)> <(32, 2)>
	# type : <Ref[Tensor[Float32]]> <Int64> <Tensor[Bool]> <Tuple[Int64*2]> -> <Tensor[Int32]> <Tensor[Float16]>
	# device address :
	# AID : 17_Default/net-Net/Split-op0
"""
    signature = read_signatures(text)["Default/net-Net/Split-op0"]
    assert signature.shapes == ((32, 4), (), (32, 2), (32, 2))
    assert signature.dtypes == ("float32", "bool", "int32", "float16")
    assert signature.inputs == 2
