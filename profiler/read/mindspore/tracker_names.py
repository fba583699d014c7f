"""What the tracker's names say: kinds of storages, phases and layers of operators.

Graph mode names nodes by scope (``Gradients/Default/network-Net/blocks-CellList/3-Block/MatMul-op1``), PyNative by
primitive alone (``MatMulExt``), HyperParallel's dry run by torch's operator (``aten.mm.default``), with the phase as
the task's name and the module as the graph's. There is no network at hand to check scopes against, as there is in
`profiler.capture.anatomy`: they are taken at their word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from hyperopt.profile import Kind, Phase
from profiler.read.timeline.scopes import scope_of

KINDS: dict[str, Kind] = {
    "Weight": "parameter",
    "Parameter": "parameter",
    "Gradient": "gradient",
    "Optstate": "optimizer_state",
    "Activation": "activation",
    "PyNativeInput": "input",
    "Inputs": "input",
}
"""Kind by the tracker's type of a block; Weight and PyNativeInput are MindSpore's, the others HyperParallel's."""

MADE = frozenset({"Kernel", "GraphOutput", "SomasOutput", "PyNativeOutput", "Temp"})
"""Types of what operators put out: activations or gradients, by the phase of the operator."""

STANDING = frozenset({"Weight", "Parameter", "Buffer", "Optstate", "ConstantValue", "GeConst", "GeFixed", "Somas"})
"""Types of what a step finds there and leaves there, if it is never released."""

PINNED = frozenset({"", "WorkSpace", "Somas"})
"""Types that are not offered for offload: no tensor is bound to the block, it is workspace, or SOMAS's one block for
many tensors."""

OPTIMIZER_STATE = re.compile(r"moment|adam_[mv]\b|exp_avg|accum|velocity|master_?(weight|param)", re.IGNORECASE)
OPTIMIZER = re.compile(r"adam|momentum|lamb(?!da)|adagrad|rmsprop|applyftrl|^sgd$", re.IGNORECASE)
DERIVATIVE = re.compile(r"Grad(V\d|Ext|D)*$|backward")

WRAPPERS = frozenset({"network", "net", "_backbone", "backbone", "loss_net", "model", "_model", "train_network"})
"""Cells of a scope that only hold the network."""

DRY_PHASES: dict[str, Phase] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "backward",
    "optimizer": "optimizer",
}
"""Task names of HyperParallel's dry run."""


def kind_of(type: str, node: str, maker: Phase, stays: bool) -> Kind:
    """`maker`: phase of the operator that allocates it; `stays`: it is never released."""
    if type in MADE and not stays:
        return "gradient" if maker == "backward" else "other" if maker == "optimizer" else "activation"
    kind = KINDS.get(type, "other")
    return "optimizer_state" if kind == "parameter" and OPTIMIZER_STATE.search(node) else kind


def phases_of(task: Sequence[str], node: Sequence[str]) -> list[Phase]:
    """By the dry run's own word; else by the scope of graph mode, where a recomputed operator is of the phase of the
    last one before that says; without scopes (PyNative) derivatives and updates alone can be told."""
    scoped = any("/" in name for name in set(node))
    said: dict[tuple[str, str], Phase | None] = {
        pair: DRY_PHASES.get(pair[0]) or _said(pair[1], scoped) for pair in set(zip(task, node, strict=True))
    }
    found: list[Phase] = []
    latest: Phase = "forward"
    for pair in zip(task, node, strict=True):
        latest = said[pair] or latest
        found.append(latest)
    return found


@cache
def _updates(type: str) -> bool:
    return bool(OPTIMIZER.search(type))


def _said(node: str, scoped: bool) -> Phase | None:
    if not node:
        return None
    if _updates(node.rsplit("/", 1)[-1].partition("-")[0]) or "/optimizer" in node:
        return "optimizer"
    if "Gradients/" in node or (not scoped and DERIVATIVE.search(node)):
        return "backward"
    if not scoped:
        return "other"
    return None if "recompute_" in node else "forward"


def layer_of(node: str, graph: str) -> str:
    """The layer in a scope of graph mode, or in the module's name that a dry run gives as the graph: the list element
    it is in, else the topmost cell.

    ``Default/network-Net/blocks-CellList/3-Block/Mul-op1`` -> ``blocks.3``; ``Model.layers.3.norm`` -> ``layers.3``.
    """
    if "/" not in node:
        cells = graph.split(".")[1:]
        place = next((i for i, cell in enumerate(cells) if cell.isdecimal()), 0)
        return ".".join(cells[: place + 1])
    if layer := scope_of(node)[0]:
        return layer
    cells = [part.rpartition("-")[0] for part in node.split("/")[:-1] if "-" in part]
    return next((cell for cell in cells if cell not in WRAPPERS), "")
