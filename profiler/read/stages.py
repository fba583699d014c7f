"""Which pipeline stage a rank is on, where only the number of stages is known."""

from __future__ import annotations


def stage_of(rank: int, ranks: int | None, stages: int | None) -> int | None:
    """The stage of `rank` among `ranks` on `stages` equal stages, each of consecutive ranks: MindSpore's and Megatron's
    order, in which the pipeline is the outermost dimension. None where a number is missing or they do not fit."""
    if not ranks or not stages or ranks % stages or not 0 <= rank < ranks:
        return None
    return rank * stages // ranks
