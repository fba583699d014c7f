"""Cost models, which of them are in use, and measurements of plans that were followed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cost_models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("framework", sa.Text(), nullable=False),
        sa.Column("framework_version", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("data_digest", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("profiles", sa.JSON(), nullable=False),
        sa.Column("measurements", sa.JSON(), nullable=False),
        sa.Column("superseded", sa.JSON(), nullable=False),
        sa.Column("signatures", sa.BigInteger(), nullable=False),
        sa.Column("groups", sa.BigInteger(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("importances", sa.JSON(), nullable=False),
        sa.Column("plans", sa.JSON(), nullable=False),
        sa.Column("drift", sa.JSON(), nullable=True),
        sa.Column("compared_with", sa.Text(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("software", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["compared_with"], ["cost_models.id"], name=op.f("fk_cost_models_compared_with"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["document"], ["documents.sha256"], name=op.f("fk_cost_models_document")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_cost_models_job_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_cost_models_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cost_models")),
        sa.UniqueConstraint("project_id", "device", "version", name=op.f("uq_cost_models_project_id_device_version")),
    )
    op.create_index(op.f("ix_cost_models_document"), "cost_models", ["document"])

    op.create_table(
        "cost_model_uses",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["cost_models.id"], name=op.f("fk_cost_model_uses_model_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_cost_model_uses_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "device", "version", name=op.f("pk_cost_model_uses")),
    )
    op.create_index(op.f("ix_cost_model_uses_model_id"), "cost_model_uses", ["model_id"])

    op.create_table(
        "measurements",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("step_ns", sa.BigInteger(), nullable=False),
        sa.Column("spread_ns", sa.BigInteger(), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("predicted_step_ns", sa.BigInteger(), nullable=False),
        sa.Column("predicted_peak_bytes", sa.BigInteger(), nullable=False),
        sa.Column("copies", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_measurements_plan_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
    )
    op.create_index(op.f("ix_measurements_plan_id"), "measurements", ["plan_id"])


def downgrade() -> None:
    op.drop_table("measurements")
    op.drop_table("cost_model_uses")
    op.drop_table("cost_models")
