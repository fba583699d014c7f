"""FLOPs and bytes against counts by hand, and names against what profilers write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperopt.cost.work import OperatorFileError, Table, Tensor, Uncounted, Work
from hyperopt.profile import Operator

TABLE = Table.load()

Shapes = Sequence[tuple[int, ...]]


def work(
    type: str, inputs: Shapes, outputs: Shapes, dtype: str = "float32", **attributes: Any
) -> Work:
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
        # with a bias: one addition an output.
        ("aclnnAddmm", [(4, 5), (5, 6), (6,)], [(4, 6)], 264, 224, 96),
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
        ("ZerosLike", [(8, 3)], [(8, 3)], 0, 0, 96),
        # rows read twice (from the gradient, where they land), the table written and the rows once more.
        ("UnsortedSegmentSum", [(5, 16), (5,)], [(10, 16)], 80, 4 * (80 + 5 + 80), 4 * (160 + 80)),
        ("aclnnEmbeddingDenseBackward", [(5, 16), (5,)], [(10, 16)], 80, 4 * (80 + 5 + 80), 320),
        # weight, two moments, gradient, step; three of them written. A document may list no outputs.
        ("ApplyAdamWV2", [(100,)] * 4 + [(1,)], [], 1500, 4 * 401, 1200),
        ("AdamWeightDecay", [(100,)] * 4, [(100,)] * 3, 1500, 1600, 1200),
        # 8 numbers in rows of 4: two comparisons each.
        ("Sort", [(2, 4)], [(2, 4), (2, 4)], 16, 32, 64),
        # 1 image, 2 -> 3 channels, 3 x 3 kernel, 4 x 4 out: 48 outputs of 18 weights.
        ("Conv2D", [(1, 2, 6, 6), (3, 2, 3, 3)], [(1, 3, 4, 4)], 2 * 48 * 18, 4 * (72 + 54), 4 * 48),
        ("Conv2DBackpropInput", [(3, 2, 3, 3), (1, 3, 4, 4)], [(1, 2, 6, 6)], 2 * 48 * 18, 4 * (54 + 48), 288),
        ("Conv2DBackpropInput", [(1, 3, 4, 4), (3, 2, 3, 3)], [(1, 2, 6, 6)], 2 * 48 * 18, 4 * (54 + 48), 288),
        ("Conv2DBackpropFilter", [(1, 2, 6, 6), (1, 3, 4, 4)], [(3, 2, 3, 3)], 2 * 48 * 18, 4 * (72 + 48), 216),
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
    assert work("FlashAttentionScore", [apart] * 3, [apart], causal=True).flops == forward.flops // 2
    folded = [(1, 4096, 2048)] * 3
    assert work("FlashAttentionScore", folded, folded[:1], heads=16, layout="BSH").flops == forward.flops
    with pytest.raises(Uncounted, match="heads and length"):
        work("FlashAttentionScore", folded, folded[:1])


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
        '[MyNorm]\nfamily = "norm"\nformula = "each"\nflops = 9\n'
    )
    table = Table.load(own)
    mine = table.kind("MyGemm")
    assert mine == TABLE.kind("MatMul") == table.kind("MatMulV3")
    assert table.kind("MyAdd") == TABLE.kind("Add")
    norm = table.kind("my_norm")
    assert norm is not None and (norm.family, norm.flops) == ("norm", 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[MatMul\n", "not TOML"),
        ('[MatMul]\nfamly = "x"\n', r"\[MatMul\] is no table"),
        ('[Mine]\nfamily = "x"\nformula = "y"\n', "a formula of"),
        ('[Mine]\nformula = "each"\n', "give a family"),
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
