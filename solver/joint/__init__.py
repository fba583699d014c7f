"""Sharding, stages and residency together: which candidate, which layers where, and what leaves HBM on each stage."""

from solver.joint.candidates import candidates
from solver.joint.description import described, passed_mb
from solver.joint.document import plan_of
from solver.joint.pipeline import Candidate, Run, StageRun, Terms
from solver.joint.sample import Sample, cut
from solver.joint.solve import Placement, Tried, place
from solver.joint.stage import Exchange, stage_step

__all__ = [
    "Candidate",
    "Exchange",
    "Placement",
    "Run",
    "Sample",
    "StageRun",
    "Terms",
    "Tried",
    "candidates",
    "cut",
    "described",
    "passed_mb",
    "place",
    "plan_of",
    "stage_step",
]
