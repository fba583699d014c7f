"""FLOPs and bytes against counts by hand, and names against what profilers write."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperopt.cost.work import OperatorFileError, Table, Tensor, Uncounted, Work
from hyperopt.profile import Operator

TABLE = Table.load()

Shapes = Sequence[tuple[int, ...]]


def work(type: str, inputs: Shapes, outputs: Shapes, dtype: str = "float32", **attributes: Any) -> Work:
    kind = TABLE.kind(type)
    assert kind is not None
    return TABLE.work(kind, [Tensor(s, dtype) for s in inputs], [Tensor(s, dtype) for s in outputs], attributes)


def operator(type: str, inputs: Shapes, outputs: Shapes, dtype: str = "bf16") -> Operator:
    shapes = (*inputs, *outputs)
    return Operator(type=type, duration_us=1.0, shapes=shapes, dtypes=(dtype,) * len(shapes), inputs=len(inputs))


@pytest.mark.parametrize(
    ("type", "name"),
    [
        ("MatMulV3", "MatMul"),
        ("MatMulExt", "MatMul"),
        ("aten::mm", "MatMul"),
        ("aclnnMatmul", "MatMul"),
        ("aclnnInplaceCopy", "Copy"),
        ("aten::copy_", "Copy"),
        ("aclnnInplaceMuls", "Mul"),
        ("FlashAttentionScoreGrad", "FlashAttentionGrad"),
        ("torch_npu::npu_fusion_attention", "FlashAttention"),
        ("hcom_allReduce_", "AllReduce"),
        ("c10d::allreduce_", "AllReduce"),
        ("npu_rotary_mul", "RotaryEmbedding"),
        ("idle", "Nothing"),
        # ATen's is a view, the kernel of that name is not; with "_" behind it, in place.
        ("aten::transpose", "TransposeView"),
        ("Transpose", "Transpose"),
        ("aten::scatter_add", "ScatterCopy"),
        ("aten::scatter_add_", "Scatter"),
    ],
)
def test_spellings_of_one_type_have_one_name(type: str, name: str) -> None:
    kind = TABLE.kind(type)
    assert kind is not None and kind.name == name


def test_without_a_type_the_last_word_of_the_name_is_looked_up() -> None:
    found = TABLE.kind("", "aclnnMatmul_MatMulV3Common_MatMulV3")
    assert found is not None and found.name == "MatMul"
    found = TABLE.kind("", "hcom_allReduce__170_1_1")
    assert found is None  # a number behind the name: the reader gives a type
    found = TABLE.kind("", "Default/net-Net/0-Dense/MatMul-op12")
    assert found is not None and found.name == "MatMul"
    assert TABLE.kind("", "aclnnSomethingNew_SomethingNew_SomethingNew") is None


@pytest.mark.parametrize(
    ("type", "inputs", "outputs", "flops", "read", "written"),
    [
        # 2 x 4 x 6 x 5; 4 bytes each of 20 + 30, and of 24.
        ("MatMul", [(4, 5), (5, 6)], [(4, 6)], 240, 200, 96),
        # both transposed: the same work.
        ("MatMul", [(5, 4), (6, 5)], [(4, 6)], 240, 200, 96),
        # with a bias: one addition an output; it comes last, or first where the product is added to it.
        ("Dense", [(4, 5), (6, 5), (6,)], [(4, 6)], 264, 224, 96),
        ("aclnnAddmm", [(6,), (4, 5), (5, 6)], [(4, 6)], 264, 224, 96),
        ("aten::addmm", [(8, 8), (8, 2), (2, 8)], [(8, 8)], 2 * 8 * 8 * 2 + 64, 4 * 96, 256),
        ("aten::baddbmm", [(3, 4, 4), (3, 4, 16), (3, 16, 4)], [(3, 4, 4)], 3 * 16 * 33, 4 * 432, 192),
        # 20 rows in 3 groups, each with a matrix (5, 6) of its own; a gradient of those.
        ("GroupedMatmul", [(20, 5), (3, 5, 6), (3,)], [(20, 6)], 2 * 20 * 5 * 6, 4 * 193, 480),
        ("GroupedMatMul", [(20, 5), (3, 6, 5)], [(20, 6)], 2 * 20 * 5 * 6, 4 * 190, 480),
        ("GroupedMatMul", [(20, 5), (20, 6)], [(3, 5, 6)], 2 * 20 * 5 * 6, 4 * 220, 360),
        # matrix by vector, vector by vector.
        ("MatMulExt", [(4, 5), (5,)], [(4,)], 40, 100, 16),
        ("MatMulExt", [(5,), (5,)], [()], 10, 40, 4),
        # rows of two axes folded into one; a weight's gradient, summed over both.
        ("MatMul", [(8, 5), (5, 6)], [(2, 4, 6)], 480, 4 * 70, 4 * 48),
        ("MatMul", [(2, 4, 5), (2, 4, 6)], [(5, 6)], 480, 4 * 88, 120),
        # leading axes folded into the rows.
        ("MatMul", [(2, 4, 5), (5, 6)], [(2, 4, 6)], 480, 4 * (40 + 30), 4 * 48),
        # 7 products of (4, 5) by (5, 6), the second transposed.
        ("BatchMatMul", [(7, 4, 5), (7, 6, 5)], [(7, 4, 6)], 7 * 240, 7 * 200, 7 * 96),
        # FRACTAL_NZ: (n1, m1, m0, n0) blocks of 16: 64 x 32 by 48 x 32 transposed -> 64 x 48.
        ("MatMulV2", [(2, 4, 16, 16), (2, 3, 16, 16)], [(3, 4, 16, 16)], 2 * 64 * 48 * 32, 4 * (2048 + 1536), 4 * 3072),
        ("Add", [(8, 3), (3,)], [(8, 3)], 24, 4 * 27, 4 * 24),
        ("AddN", [(8, 3), (8, 3), (8, 3)], [(8, 3)], 48, 4 * 72, 4 * 24),
        ("ReduceSum", [(8, 3)], [(8, 1)], 24, 96, 32),
        ("LpNormV2", [(1000,)], [()], 2000, 4000, 4),
        ("RmsNorm", [(8, 3), (3,)], [(8, 3), (8, 1)], 96, 108, 128),
        ("LayerNorm", [(8, 3), (3,), (3,)], [(8, 3), (8, 1), (8, 1)], 168, 120, 160),
        ("Softmax", [(8, 3)], [(8, 3)], 120, 96, 96),
        ("Transpose", [(8, 3)], [(3, 8)], 0, 96, 96),
        ("ConcatD", [(8, 3), (8, 3)], [(8, 6)], 0, 192, 192),
        ("Tile", [(8, 1)], [(8, 3)], 0, 32, 96),
        # of a table of 1000 rows 5 are read, and their 5 indices.
        ("Gather", [(1000, 16), (5,)], [(5, 16)], 0, 4 * (80 + 5), 320),
        ("Slice", [(100, 100)], [(10, 10)], 0, 400, 400),
        # the gradient is read, and the tensor's shape alone.
        ("SliceGrad", [(10, 10), (100, 100)], [(100, 100)], 0, 400, 40000),
        ("StridedSliceGrad", [(10, 10)], [(100, 100)], 0, 400, 40000),
        ("PadGrad", [(12, 12)], [(10, 10)], 0, 400, 400),
        # of two tensors of one shape the first is only written.
        ("Assign", [(8, 3), (8, 3)], [(8, 3)], 0, 96, 96),
        ("Assign", [(8, 3), (8, 3)], [], 0, 96, 96),
        ("aten::copy_", [(8, 3), (3,)], [(8, 3)], 0, 12, 96),
        ("Reshape", [(8, 3), (2,)], [(3, 8)], 0, 104, 96),
        ("TensorMove", [(8, 3)], [(8, 3)], 0, 96, 96),
        # one number of each of 8 rows, and 8 labels; of (N, C, H, W) one for each pixel.
        ("NLLLoss", [(8, 1000), (8,)], [(), ()], 0, 64, 8),
        ("NLLLoss", [(2, 10, 3, 3), (2, 3, 3)], [()], 0, 8 * 18, 4),
        # indices, values, shape -> a new tensor.
        ("ScatterNd", [(5, 1), (5, 16), (2,)], [(10, 16)], 80, 4 * 87, 640),
        ("ZerosLike", [(8, 3)], [(8, 3)], 0, 0, 96),
        # x says the shape alone: axis, places and gradients are read, the latter once more where they land in zeros.
        ("GatherDGradV2", [(6, 50), (1,), (6, 2), (6, 2)], [(6, 50)], 12, 4 * (1 + 12 + 12 + 12), 4 * (300 + 12)),
        ("GatherDGradV2", [(6, 50), (6, 2), (6, 2)], [(6, 50)], 12, 4 * 36, 4 * 312),
        # in place: places and 3 rows of 4; a new tensor: all 10 rows are copied as well.
        ("ScatterUpdate", [(10, 4), (3,), (3, 4)], [(10, 4)], 12, 4 * (3 + 24), 48),
        ("TensorScatterUpdate", [(10, 4), (3, 1), (3, 4)], [(10, 4)], 12, 4 * (40 + 3 + 24), 4 * (40 + 12)),
        ("aten::index_put", [(10, 4), (3,), (3, 4)], [(10, 4)], 12, 4 * (40 + 3 + 24), 4 * (40 + 12)),
        ("aten::index_put_", [(10, 4), (3,), (3, 4)], [(10, 4)], 12, 4 * (3 + 24), 48),
        # queries of 4 heads and keys of 2, in place or not: 3 FLOPs each.
        ("ApplyRotaryPosEmb", [(2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 1, 8), (2, 5, 1, 8)], [(2, 5, 4, 8), (2, 5, 2, 8)],
         3 * 480, 4 * (480 + 160), 4 * 480),
        ("aclnnApplyRotaryPosEmbV2", [(2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 1, 8), (2, 5, 1, 8)], [],
         3 * 480, 4 * (480 + 160), 4 * 480),
        # rows read twice (from the gradient, where they land), the table written and the rows once more.
        ("UnsortedSegmentSum", [(5, 16), (5,)], [(10, 16)], 80, 4 * (80 + 5 + 80), 4 * (160 + 80)),
        ("aclnnEmbeddingDenseBackward", [(5, 16), (5,)], [(10, 16)], 80, 4 * (80 + 5 + 80), 320),
        # weight, two moments, gradient, step; three of them written. A document may list no outputs.
        ("ApplyAdamWV2", [(100,)] * 4 + [(1,)], [], 1500, 4 * 401, 1200),
        ("AdamWeightDecay", [(100,)] * 4, [(100,)] * 3, 1500, 1600, 1200),
        # two moments and a gradient; what is to be added comes out.
        ("AdamNoUpdateParam", [(100,)] * 3, [(100,)], 1300, 1200, 1200),
        # lists: weights, gradients, two moments, steps.
        ("aten::_fused_adamw_", [*[(10,), (5, 2)] * 4, (), ()], [], 300, 328, 240),
        ("FusedAdam", [(100,)] * 4 + [(1,)] * 6, [], 1400, 4 * 406, 1200),
        # 8 numbers in rows of 4: two comparisons each.
        ("Sort", [(2, 4)], [(2, 4), (2, 4)], 16, 32, 64),
        # 1 image, 2 -> 3 channels, 3 x 3 kernel, 4 x 4 out: 48 outputs of 18 weights.
        ("Conv2D", [(1, 2, 6, 6), (3, 2, 3, 3)], [(1, 3, 4, 4)], 2 * 48 * 18, 4 * (72 + 54), 4 * 48),
        ("Conv2DBackpropInput", [(3, 2, 3, 3), (1, 3, 4, 4)], [(1, 2, 6, 6)], 2 * 48 * 18, 4 * (54 + 48), 288),
        ("Conv2DBackpropInput", [(1, 3, 4, 4), (3, 2, 3, 3)], [(1, 2, 6, 6)], 2 * 48 * 18, 4 * (54 + 48), 288),
        ("Conv2DBackpropFilter", [(1, 2, 6, 6), (1, 3, 4, 4)], [(3, 2, 3, 3)], 2 * 48 * 18, 4 * (72 + 48), 216),
        # three axes of space; and one.
        ("Conv3D", [(1, 2, 6, 6, 8), (3, 2, 3, 3, 3)], [(1, 3, 4, 4, 6)], 2 * 288 * 54, 4 * (576 + 162), 4 * 288),
        ("aten::convolution", [(1, 2, 6), (3, 2, 3)], [(1, 3, 4)], 2 * 12 * 6, 4 * (12 + 18), 48),
        # in groups of a channel each.
        ("Conv2D", [(1, 4, 6, 6), (4, 1, 3, 3)], [(1, 4, 4, 4)], 2 * 64 * 9, 4 * (144 + 36), 256),
        # as many channels in as out, half as large: which is the gradient is told by size, in either order.
        ("Conv2DBackpropFilter", [(2, 4, 3, 3), (2, 4, 6, 6)], [(4, 4, 3, 3)], 2 * 72 * 36, 4 * 360, 576),
        ("Conv2DBackpropFilter", [(2, 4, 6, 6), (2, 4, 3, 3)], [(4, 4, 3, 3)], 2 * 72 * 36, 4 * 360, 576),
        # as many images as channels.
        ("Conv2DBackpropInput", [(8, 4, 3, 3), (4, 8, 4, 4)], [(4, 4, 6, 6)], 2 * 512 * 36, 4 * 800, 4 * 576),
        ("Conv2DBackpropInput", [(4, 8, 4, 4), (8, 4, 3, 3)], [(4, 4, 6, 6)], 2 * 512 * 36, 4 * 800, 4 * 576),
        ("ForeachAddList", [(4,), (6,), (4,), (6,)], [(4,), (6,)], 10, 80, 40),
        ("hcom_reduceScatter_", [(100,)], [(25,)], 100, 400, 100),
        ("hcom_allGather_", [(25,)], [(100,)], 0, 100, 400),
        ("idle", [], [], 0, 0, 0),
    ],
)  # fmt: skip
def test_hand_counts(type: str, inputs: Any, outputs: Any, flops: int, read: int, written: int) -> None:
    assert work(type, inputs, outputs) == Work(flops, read, written)


def test_blocked_images_and_weights_are_counted_as_they_are_padded() -> None:
    """NC1HWC0 with FRACTAL_Z, from AlexNet's second layer on an Ascend: 64 -> 192 channels, 5 x 5, 27 x 27."""
    found = work("Conv2D", [(32, 8, 27, 27, 8), (200, 12, 16, 8), (192,)], [(32, 24, 27, 27, 8)])
    assert found.flops == 2 * 32 * 192 * 27 * 27 * 64 * 25


def test_attention_by_its_statistics_or_by_four_axes() -> None:
    """16 heads of 128 over 4096 positions, 8 of keys: folded (S, B, N D), as an Ascend's kernel has it."""
    scores = 16 * 4096 * 4096
    q, kv, statistics = (4096, 1, 2048), (4096, 1, 1024), (1, 16, 4096, 8)
    forward = work("FlashAttentionScore", [q, kv, kv], [statistics, statistics, q], "bf16")
    assert forward.flops == scores * (4 * 128 + 5)
    backward = work("FlashAttentionScoreGrad", [q, kv, kv, q, statistics, statistics, q], [q, kv, kv], "bf16")
    assert backward.flops == scores * (10 * 128 + 8)
    apart = (1, 16, 4096, 128)
    assert work("scaled_dot_product_attention", [apart] * 3, [apart]).flops == forward.flops
    assert work("FlashAttentionScore", [apart] * 3, [apart], causal=True, layout="BNSD").flops == forward.flops // 2
    turned = (1, 4096, 16, 128)
    assert work("FlashAttentionScore", [turned] * 3, [apart[:3], turned]).flops == forward.flops
    assert work("FlashAttentionScore", [turned] * 3, [statistics, turned]).flops == forward.flops
    folded = [(1, 4096, 2048)] * 3
    assert work("FlashAttentionScore", folded, folded[:1], heads=16, layout="BSH").flops == forward.flops
    with pytest.raises(Uncounted, match="heads and length"):
        work("FlashAttentionScore", folded, folded[:1])


def test_new_keys_and_values_touch_their_slots_of_the_caches_alone() -> None:
    """3 tokens of 2 heads of 8; caches of 16 blocks of 4. MindSpore's order, and CANN's; keys alone."""
    new, cache, slots = Tensor((3, 2, 8), "float16"), Tensor((16, 4, 2, 8), "float16"), Tensor((3,), "int32")
    kinds = [TABLE.kind(type) for type in ("ReshapeAndCache", "aclnnScatterPaKvCache")]
    assert kinds[0] is not None and kinds[0] == kinds[1]
    for inputs in ([new, new, cache, cache, slots], [new, cache, slots, new, cache]):
        assert TABLE.work(kinds[0], inputs, []) == Work(0, 2 * 96 + 12, 2 * 96)
    assert TABLE.work(kinds[0], [new, cache, slots], []) == Work(0, 96 + 12, 96)
    with pytest.raises(Uncounted, match="are not keys, values, caches and slots"):
        TABLE.work(kinds[0], [new, cache, slots, new, cache, slots, slots], [])
    with pytest.raises(Uncounted, match="no keys or values for"):
        TABLE.work(kinds[0], [cache, new, slots], [])


@pytest.mark.parametrize("view", ["view", "as_strided", "expand", "transpose", "permute", "slice", "split", "unsqueeze",
                                  "t", "detach", "squeeze"])  # fmt: skip
def test_views_are_no_work(view: str) -> None:
    assert TABLE.of(operator(f"aten::{view}", [(8, 4)], [(8, 4)])) == (TABLE.kind(f"aten::{view}"), Work(0, 0, 0))


@pytest.mark.parametrize("type", ["TransposeExtView", "SliceExtView", "BroadcastToView", "View"])
def test_views_of_mindspore_are_no_work(type: str) -> None:
    assert TABLE.of(operator(type, [(8, 4)], [(8, 4)]))[1] == Work(0, 0, 0)


@pytest.mark.parametrize("type", ["aten::reshape", "aten::contiguous", "Transpose", "Slice", "AsStrided", "Split"])
def test_what_may_copy_is_counted(type: str) -> None:
    assert TABLE.of(operator(type, [(8, 4)], [(8, 4)]))[1] == Work(0, 64, 64)


def test_the_gradient_of_atens_attention_goes_in_first() -> None:
    """Keys over 256 positions, queries over 128: 16 x 128 x 256 scores."""
    q, k, statistics = (2, 8, 128, 64), (2, 8, 256, 64), (2, 8, 128)
    found = work("aten::_scaled_dot_product_flash_attention_backward", [q, q, k, k, q, statistics], [q, k, k])
    assert found.flops == 16 * 128 * 256 * (10 * 64 + 8)
    assert found.read == 4 * (3 * prod(q) + 2 * prod(k) + prod(statistics))


def test_attention_whose_layout_shapes_do_not_tell_is_left_out() -> None:
    """(2, 8, 256, 64) are 8 heads over 256 positions, or 256 heads over 8; key heads, or equal lengths, may tell."""
    with pytest.raises(Uncounted, match="heads and length"):
        work("FlashAttentionScore", [(2, 8, 256, 64)] * 3, [(2, 8, 256, 64)])
    one_query = work("FlashAttentionScore", [(2, 8, 1, 64), (2, 8, 256, 64), (2, 8, 256, 64)], [(2, 8, 1, 64)])
    assert one_query.flops == 2 * 8 * 256 * (4 * 64 + 5)
    assert work("PromptFlashAttention", [(2, 8, 8, 64)] * 3, [(2, 8, 8, 64)]).flops == 2 * 8**3 * (4 * 64 + 5)
    # An output of heads of 8 is no statistics.
    with pytest.raises(Uncounted, match="heads and length"):
        work("FlashAttentionScore", [(2, 256, 4, 8)] * 3, [(2, 256, 4, 8)])


def test_values_may_have_heads_of_another_size() -> None:
    found = work("scaled_dot_product_attention", [(2, 8, 256, 192)] * 2 + [(2, 8, 256, 128)], [(2, 8, 256, 128)])
    assert found.flops == 2 * 8 * 256 * 256 * (2 * 192 + 2 * 128 + 5)


lengths = st.sampled_from([1, 2, 3, 4, 6, 8, 9, 16])
shapes = st.lists(lengths, max_size=4).map(tuple)


def is_product(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], flops: int) -> bool:
    """Whether NumPy gets `out` by so many FLOPs from the matrices, either turned, folded into rows or summed over."""
    lefts, rights = ([t, t.swapaxes(-1, -2)] if t.ndim > 1 else [t] for t in (np.zeros(a), np.zeros(b)))
    ways = [(x, y, out) for x in lefts for y in rights]
    if len(a) > 1 and len(b) == 2:
        ways += [(lefts[0].reshape(-1, a[-1]), y, (prod(out[:-1]), *out[-1:])) for y in rights]
    if len(a) > 1 and len(b) > 1:
        ways += [(lefts[0].reshape(-1, a[-1]).T, rights[0].reshape(-1, b[-1]), out)]
    for x, y, shape in ways:
        with suppress(ValueError):
            if np.matmul(x, y).shape == shape and 2 * prod(shape) * x.shape[-1] == flops:
                return True
    return False


@given(shapes, shapes, shapes)
@settings(max_examples=400, deadline=None)
def test_only_what_is_a_product_is_counted_as_one(a: Any, b: Any, out: Any) -> None:
    try:
        found = work("MatMul", [a, b], [out])
    except Uncounted:
        return
    assert is_product(a, b, out, found.flops)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_every_product_is_counted(data: st.DataObject) -> None:
    """Whatever NumPy multiplies: broadcast, turned, vectors."""
    m, n, k = (data.draw(lengths) for _ in range(3))
    front = data.draw(st.lists(lengths, max_size=2).map(tuple))
    own = tuple(1 if data.draw(st.booleans()) else size for size in front)
    a, b = (*front, m, k), (*own[data.draw(st.integers(0, len(own))) :], k, n)
    out = np.matmul(np.zeros(a), np.zeros(b)).shape
    turned = [shape if data.draw(st.booleans()) else (*shape[:-2], *shape[:-3:-1]) for shape in (a, b)]
    assert work("MatMul", turned, [out]).flops == 2 * prod(out) * k


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_convolutions_and_their_gradients_are_one_count(data: st.DataObject) -> None:
    """In either order of what goes in, whatever lengths are alike: the forward's FLOPs, or left out."""
    axes, groups = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 1, 2]))
    batch, inner, outer = (data.draw(lengths) for _ in range(3))
    space = [data.draw(st.integers(3, 9)) for _ in range(axes)]
    width, stride = data.draw(st.sampled_from([1, 3])), data.draw(st.integers(1, 2))
    image = (batch, inner * groups, *space)
    weight = (outer * groups, inner, *[width] * axes)
    out = (batch, outer * groups, *[(n - width) // stride + 1 for n in space])
    flops = 2 * prod(out) * inner * width**axes
    assert work("Conv3D", [image, weight], [out]).flops == flops
    for type, two, made in (
        ("Conv2DBackpropInput", [weight, out], image),
        ("Conv2DBackpropFilter", [image, out], weight),
    ):
        counted = set()
        for order in (two, two[::-1]):
            with suppress(Uncounted):
                counted.add(work(type, order, [made]).flops)
        assert counted <= {flops}


def test_a_product_of_batches_is_of_that_family_whatever_its_name() -> None:
    assert TABLE.of(operator("MatMulExt", [(7, 4, 5), (7, 5, 6)], [(7, 4, 6)]))[0].family == "batch_matmul"
    assert TABLE.of(operator("MatMulExt", [(7, 4, 5), (5, 6)], [(7, 4, 6)]))[0].family == "matmul"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (operator("NotYetKnown", [(1,)], [(1,)]), "type 'NotYetKnown' is unknown"),
        (Operator(type="MatMul", duration_us=1.0, shapes=((4, 6),), dtypes=("float32",)), "does not say which"),
        (Operator(type="MatMul", duration_us=1.0), "no shapes"),
        (operator("MatMul", [(4, 5), (7, 6)], [(4, 6)]), "no matrix product"),
        (operator("MatMul", [(4, 5)], [(4, 6)]), "1 inputs where 2"),
        # quotients that are squares by chance.
        (operator("MatMul", [(8, 16), (4, 4)], [(8, 4)]), "no matrix product"),
        (operator("MatMul", [(6, 4), (9, 5)], [(6, 5)]), "no matrix product"),
        (operator("BatchMatMul", [(2, 4, 5), (3, 5, 6)], [(3, 4, 6)]), "no matrix product"),
        (operator("addmm", [(4, 5), (5, 6), (6,)], [(4, 6)]), "no matrix product"),
        (operator("GroupedMatmul", [(20, 5), (4, 7, 5)], [(20, 7, 1)]), "no product in groups"),
        (operator("Conv2D", [(1, 6, 6, 2), (3, 2, 3, 3)], [(1, 4, 4, 3)]), "do not tell one convolution"),
        (operator("_fused_adamw", [(4,), (6,), (4,)], []), "are not 4 lists"),
        (operator("GatherDGradV2", [(6, 50), (6, 2), (6, 3)], [(6, 50)]), "no places and gradients"),
        (operator("TensorScatterUpdate", [(10, 4), (3, 1), (3, 4)], [(9, 4)]), "no output of"),
        (operator("ApplyRotaryPosEmb", [(2, 4), (2, 4)], []), "2 inputs where 4"),
        (operator("KvRmsNormRopeCache", [(2, 4)], [(2, 4)]), "is unknown"),
        (operator("_fused_adamw", [(4,)] * 20, []), "are not 4 lists"),
        (operator("Add", [(4,), (4,)], [(4,)], "int3"), "element type 'int3' is unknown"),
    ],
)
def test_nothing_is_guessed(given: Operator, why: str) -> None:
    with pytest.raises(Uncounted, match=why):
        TABLE.of(given)


def test_a_file_of_ones_own_adds_spellings_and_types(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        '[MatMul]\nnames = ["MyGemm"]\n'
        '[Elementwise.types]\nAdd = ["MyAdd"]\n'
        '[Copy]\nnames = ["aten::view"]\n'
        '[MyNorm]\nfamily = "norm"\nformula = "each"\nflops = 9\n'
    )
    table = Table.load(own)
    mine = table.kind("MyGemm")
    assert mine == TABLE.kind("MatMul") == table.kind("MatMulV3")
    assert table.kind("MyAdd") == TABLE.kind("Add")
    assert table.kind("aten::view") == TABLE.kind("Copy") != table.kind("View") == TABLE.kind("View")
    norm = table.kind("my_norm")
    assert norm is not None and (norm.family, norm.flops) == ("norm", 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[MatMul\n", "not TOML"),
        ('[MatMul]\nfamly = "x"\n', r"\[MatMul\] is no table"),
        ('[Mine]\nfamily = "x"\nformula = "y"\n', "a formula of"),
        ('[Mine]\nformula = "each"\n', "give a family"),
        (
            '[X]\nfamily = "optimizer"\nformula = "update"\nnames = ["Exp"]\n',
            r"\[X\] X .* no `updates` .*give `updates`",
        ),
        ("[AdamW]\nupdates = 0\n", "give `updates`"),
        ('[Mine]\nfamily = "x"\nformula = "attention"\nlayout = "SBH"\n', r"layout \(BNSD or BSND\)"),
        ('[A]\nfamily = "x"\nformula = "each"\n[B]\nfamily = "x"\nformula = "each"\nnames = ["a"]\n', "is also A"),
    ],
)
def test_a_bad_file_is_told_with_its_entry(tmp_path: Path, text: str, why: str) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(text)
    with pytest.raises(OperatorFileError, match=why):
        Table.load(own)
    with pytest.raises(OperatorFileError, match="cannot be read"):
        Table.load(tmp_path / "absent.toml")
