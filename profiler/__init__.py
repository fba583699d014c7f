"""Anything -> profile, and plan -> running MindSpore.

Importing this package, or one of its readers, does not import MindSpore: ``capture`` and
``apply`` reach for it when they are called. Both are functions that share their name with
the package they live in, so import modules below them with ``from profiler.capture.graph
import ...``, not with ``import profiler.capture.graph as ...``.
"""

from profiler.apply import apply
from profiler.capture import capture

__all__ = ["apply", "capture"]
