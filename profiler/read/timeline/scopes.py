"""What MindSpore's kernel names say: which layer a kernel belongs to, and whether it goes forward or back.

::

    Default/network-Net/layers-CellList/3-Decoder/attention-Attention/MatMul-op12           layers.3, forward
    Gradients/Default/network-Net/layers-CellList/3-Decoder/.../gradMatMul/MatMul-op90      layers.3, backward
    recompute_Default/network-Net/layers-CellList/3-Decoder/.../MatMul-op91                 layers.3, backward
    Default/optimizer-AdamWeightDecay/Adam-op200                                            optimizer

Names of other frameworks (``aclnnMatmul_MatMulV3_MatMulV3``) have no scope and say neither.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from hyperopt.profile import Phase

_ROOT = re.compile(r"(?:^|/)(?:recompute_)?(?:Default|Gradients)/", re.I)
_ELEMENT = re.compile(r"^(\d+)-\w+$")
_OPTIMIZER = re.compile(r"(?:^|/)\w*optimizer\w*-", re.I)


@lru_cache(maxsize=1 << 16)
def scope_of(name: str) -> tuple[str, Phase | None]:
    """Layer ("" where none is named) and phase (None where the name has no scope) of a kernel's full name."""
    if not _ROOT.search(name):
        return "", None
    parts = name.split("/")
    layer = ""
    for before, part in pairwise(parts):
        if element := _ELEMENT.match(part):
            layer = f"{before.rpartition('-')[0] or before}.{element[1]}"
            break
    if _OPTIMIZER.search(name):
        return layer, "optimizer"
    back = "recompute_" in name or re.search(r"(?:^|/)gradients/|/grad[A-Z]", name, re.I) is not None
    return layer, "backward" if back else "forward"
