"""Whose commit a check is of, and what an acceptance was asked to take in spite of its checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nobody said it before: checks counted as their branch's own, and acceptances are taken as without a flag.
    with op.batch_alter_table("checks") as checks:
        checks.add_column(sa.Column("head", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("acceptances") as acceptances:
        for name in ("accept_regression", "accept_inconclusive"):
            acceptances.add_column(sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("acceptances") as acceptances:
        for name in ("accept_inconclusive", "accept_regression"):
            acceptances.drop_column(name)
    with op.batch_alter_table("checks") as checks:
        checks.drop_column("head")
