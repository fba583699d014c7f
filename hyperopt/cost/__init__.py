"""What operators, copies and collectives take, predicted with intervals from what was measured.

    work.py        an operator's shapes -> FLOPs, bytes read, bytes written      operators.toml   names and formulas
    formulas.py    the formulas themselves

The only package that imports scikit-learn.
"""
