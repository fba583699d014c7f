"""The words and the doors of hyperopt: documents, replay, validate, store, gate, report, client, CLI.

A profile flows one way through the folders::

    profiler ──▶ hyperopt (documents, store) ──▶ solver ──▶ hyperopt (plan) ──▶ profiler (apply) ──▶ gate
"""

__version__ = "0.1.0"
