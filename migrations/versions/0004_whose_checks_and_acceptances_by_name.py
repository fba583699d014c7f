"""Whose commit a check is of, and what an acceptance was asked to take in spite of its checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In place: a copy of `checks` in its stead, as batch mode makes it, would take from acceptances what they name.
    # Nobody said it before: checks counted as their branch's own, and acceptances are taken as without a flag.
    op.add_column("checks", sa.Column("head", sa.Text(), nullable=False, server_default=""))
    for name in ("accept_regression", "accept_inconclusive"):
        op.add_column("acceptances", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    for name in ("accept_inconclusive", "accept_regression"):
        op.drop_column("acceptances", name)
    op.drop_column("checks", "head")
