"""What operators, copies and collectives take, predicted with intervals from what was measured.

    work.py        an operator's shapes -> FLOPs, bytes read, bytes written      operators.toml   names and formulas
    formulas.py    the formulas themselves
    collectives.py bytes and time of collectives on a mesh

The only package that imports scikit-learn.
"""
