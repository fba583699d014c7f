"""Checks of the gate, baselines of branches and who accepted them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("baseline_profile", sa.Text(), nullable=False),
        sa.Column("candidate_profile", sa.Text(), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["baseline_profile"], ["ranks.id"], name=op.f("fk_checks_baseline_profile"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["candidate_profile"], ["ranks.id"], name=op.f("fk_checks_candidate_profile"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_checks_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checks")),
    )
    for column in ("project_id", "baseline_profile", "candidate_profile", "created_at"):
        op.create_index(op.f(f"ix_checks_{column}"), "checks", [column])

    op.create_table(
        "baselines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("framework", sa.Text(), nullable=False),
        sa.Column("framework_version", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("frozen", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_baselines_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_baselines")),
    )
    op.create_index(op.f("ix_baselines_project_id_branch"), "baselines", ["project_id", "branch"])

    op.create_table(
        "acceptances",
        sa.Column("baseline_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.Column("check_id", sa.Text(), nullable=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["baseline_id"], ["baselines.id"], name=op.f("fk_acceptances_baseline_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["check_id"], ["checks.id"], name=op.f("fk_acceptances_check_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["ranks.id"], name=op.f("fk_acceptances_profile_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("baseline_id", "version", name=op.f("pk_acceptances")),
    )
    op.create_index(op.f("ix_acceptances_profile_id"), "acceptances", ["profile_id"])


def downgrade() -> None:
    op.drop_table("acceptances")
    op.drop_table("baselines")
    op.drop_table("checks")
