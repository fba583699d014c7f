"""Writes actor-set dumps in MindSpore's spelling, for graphs small enough to check by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class K:
    """One kernel. ``inputs``: ``"w"`` a stored tensor, ``"=2"`` a constant, ``"@ids"`` an input of the graph,
    ``"name:0"`` an output of a kernel."""

    name: str
    inputs: Sequence[str] = ()
    outputs: Sequence[int] = ()
    workspaces: Sequence[int] = ()
    refs: Mapping[int, int] = field(default_factory=dict)
    updates: Sequence[int] = ()
    after: Sequence[str] = ()
    launched: bool = True


def arrow_line(actor: str, index: int, to: int) -> str:
    return f"\t\t\tfrom_actor_name:{actor}\tfrom_output_index:{index}\tto_input_index:{to}"


def input_line(to: int, name: str, what: str) -> str:
    return f"\t\t\tto_input_index:{to}\tfrom_node_name:{name}, debug_name: {what}"


def actor_set_text(
    kernels: Sequence[K], stored: Mapping[str, int], host: Mapping[str, int], results: Sequence[str], somas: int = 0
) -> str:
    number = {kernel.name: i for i, kernel in enumerate(kernels)}

    def arrow(source: str, to: int) -> str:
        if source.startswith("@"):
            return arrow_line("kernel_graph_0_HostDSActor", 0, to)  # whichever input it is
        name, _, index = source.rpartition(":")
        return arrow_line(f"{number[name]}_{name}", int(index), to)

    lines = ["[Device tensor stores]", "\tgraph_id:0\tis_graph_run_mode:0"]
    for name, size in stored.items():
        lines.append(f"\t\tdevice tensor key:{name}\tvalue size:1")
        lines.append(f"\t\t\tdevice tensor value:0x5583\tptr:0x5583\tsize:{size}\tstream id:0\tflag:0")
    lines += ["[Data source actors:1]", "\tactor_name:kernel_graph_0_HostDSActor\tactor_id:1"]
    for i, (name, size) in enumerate(host.items()):
        where = f"node_order_number:{i}\tnode_name:{name}\tdebug_name:@g:param\tindex:0"
        lines.append(f"\t\t\t{where}\tptr:0\tsize:{size}\tstream id:0")
    for i, kernel in enumerate(kernels):
        for to, source in enumerate(kernel.inputs):
            if source.startswith("@"):
                actor = f"to_actor_name:{i}_{kernel.name}\tto_input_index:{to}\tflag:0"
                lines.append(f"\t\t\tfrom_output_node:{source[1:]}\tfrom_output_index:0\t{actor}")
    lines.append(f"[Kernel actors:{len(kernels)}]")
    for i, kernel in enumerate(kernels):
        lines.append(f"\tactor_name:{i}_{kernel.name}\tactor_id:{i + 3}")
        counts = f"inputs_num:{len(kernel.inputs)}\toutputs_num:{len(kernel.outputs)}\tis_dynamic_shape:0"
        skipped = 0 if kernel.launched else 1
        lines.append(f"\t\tkernel_name:{kernel.name}\tstream id:0\t{counts}\tis_launch_skipped:{skipped}")
        for kind, sizes in (("output", kernel.outputs), ("workspace", kernel.workspaces)):
            for j, size in enumerate(sizes):
                lines.append(f" \t\t\t{kind}_index:{j}\tptr:0\tsize:{size}\tstream id:0\tis_somas_enable:{somas}")
        for j, source in enumerate(kernel.inputs):
            if source.startswith("="):
                lines.append(input_line(j, f"Default/data-{source[1:]}", f"ValueNode<Int64Imm> {source[1:]}"))
            elif ":" not in source and not source.startswith("@"):
                lines.append(input_line(j, source, f"@g:param_{source}"))
            else:
                lines.append(arrow(source, j))
        lines += [f"\t\t\tfrom_actor_name:{number[name]}_{name}" for name in kernel.after]
        lines += [f"\t\t\tmodifiable_ref_input_index:{j}" for j in kernel.updates]
        lines += [f" \t\t\tref index:({out}, {into}) " for out, into in kernel.refs.items()]
        lines.append("")
    lines += ["[Super kernel actors:0]", "", "[Output actor:1]", "\tactor_name:kernel_graph_0_OutputActor\tactor_id:99"]
    lines += [arrow(source, i) for i, source in enumerate(results)]
    return "\n".join([*lines, "", "[Fusion actors:0]", ""])


A, B = "Default/net-Net/layers-CellList/0-Layer", "Default/net-Net/layers-CellList/1-Layer"

TWO_LAYERS = [
    # The scopes of Mul-op1 and Exp-op1 lie (the compiler reuses the first one), MatMul has none.
    K(f"{A}/Mul-op0", ["@x"], [100]),
    K("Expand/MatMul-op0", [f"{A}/Mul-op0:0", "layers.0.weight"], [200]),
    K("Default/net-Net/Reshape-op0", ["Expand/MatMul-op0:0", "=7"], [200], refs={0: 0}, launched=False),
    K(f"{A}/Exp-op0", ["Default/net-Net/Reshape-op0:0"], [200], workspaces=[16]),
    K(f"{A}/Add-op0", [f"{A}/Exp-op0:0", "@x"], [100]),
    K(f"{A}/Mul-op1", [f"{A}/Add-op0:0"], [100]),
    K("Expand/MatMul-op1", [f"{A}/Mul-op1:0", "layers.1.weight"], [200]),
    K(f"{A}/Exp-op1", ["Expand/MatMul-op1:0"], [200]),
    K(f"{A}/Add-op1", [f"{A}/Exp-op1:0", f"{A}/Add-op0:0"], [100]),
    K("Default/net-Net/ReduceMean-op0", [f"{A}/Add-op1:0"], [4]),
    K(f"Gradients/{A}/Grad_Exp/Mul-op1", [f"{A}/Exp-op1:0", f"{A}/Add-op1:0"], [200]),
    K("Expand/MatMul-op2", [f"{A}/Mul-op1:0", f"Gradients/{A}/Grad_Exp/Mul-op1:0"], [300]),
    K(f"Gradients/{A}/Grad_Exp/Mul-op0", [f"{A}/Exp-op0:0", f"Gradients/{A}/Grad_Exp/Mul-op1:0"], [200]),
    K("Expand/MatMul-op3", [f"{A}/Mul-op0:0", f"Gradients/{A}/Grad_Exp/Mul-op0:0"], [300]),
    K(
        "Default/optimizer-Adam/Adam-op0",
        ["layers.0.weight", "mean.0", "=9", "Expand/MatMul-op3:0"],
        [300, 300],
        updates=[0, 1],
    ),
    K(
        "Default/optimizer-Adam/Adam-op1",
        ["layers.1.weight", "mean.1", "=9", "Expand/MatMul-op2:0"],
        [300, 300],
        updates=[0, 1],
        after=["Default/optimizer-Adam/Adam-op0"],
    ),
]
STORED = {"layers.0.weight": 300, "layers.1.weight": 300, "mean.0": 300, "mean.1": 300, "Default/data-7": 8}


def two_layers(kernels: Sequence[K] = TWO_LAYERS) -> str:
    """A network of two layers with their backward and an optimizer, as one dump."""
    return actor_set_text(kernels, STORED, {"x": 64}, ["Default/net-Net/ReduceMean-op0:0"])
