"""Made-up steps for tests and benchmarks, from published model shapes: `generate(name, operators, seed)`.

::

    shapes, accelerator ─▶ tape ◀─ gradients ◀─ blocks ◀─ training ─┐
                            ▲                                       ├─▶ traces: names, sizes, generate
                            └────────────────────────── inference ──┘
"""

from hyperopt.testing.traces import TRACES, Figures, Trace, figures, generate

__all__ = ["TRACES", "Figures", "Trace", "figures", "generate"]
