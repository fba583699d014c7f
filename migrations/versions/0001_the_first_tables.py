"""The first tables: projects, programs, runs, ranks, documents, timings, plans, jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "documents",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("encoding", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_documents")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "programs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("operators", sa.BigInteger(), nullable=False),
        sa.Column("storages", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_programs_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_programs")),
        sa.UniqueConstraint("project_id", "digest", name=op.f("uq_programs_project_id_digest")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("framework", sa.Text(), nullable=False),
        sa.Column("framework_version", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_runs_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_project_id_name"), "runs", ["project_id", "name"])

    op.create_table(
        "operators",
        sa.Column("program_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("layer", sa.Text(), nullable=False),
        sa.Column("workspace_bytes", sa.BigInteger(), nullable=False),
        sa.Column("recomputable", sa.Boolean(), nullable=False),
        sa.Column("micro_batch", sa.BigInteger(), nullable=True),
        sa.Column("stage", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["program_id"], ["programs.id"], name=op.f("fk_operators_program_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("program_id", "position", name=op.f("pk_operators")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ranks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("program_id", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("is_measured", sa.Boolean(), nullable=False),
        sa.Column("timing_only", sa.Boolean(), nullable=False),
        sa.Column("base_bytes", sa.BigInteger(), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_op", sa.BigInteger(), nullable=True),
        sa.Column("step_ns", sa.BigInteger(), nullable=True),
        sa.Column("device", sa.JSON(), nullable=False),
        sa.Column("measured", sa.JSON(), nullable=True),
        sa.Column("adapter", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["document"], ["documents.sha256"], name=op.f("fk_ranks_document")),
        sa.ForeignKeyConstraint(["program_id"], ["programs.id"], name=op.f("fk_ranks_program_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_ranks_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ranks")),
        sa.UniqueConstraint("digest", name=op.f("uq_ranks_digest")),
        sa.UniqueConstraint("run_id", "rank", name=op.f("uq_ranks_run_id_rank")),
    )
    op.create_index(op.f("ix_ranks_document"), "ranks", ["document"])
    op.create_index(op.f("ix_ranks_created_at"), "ranks", ["created_at"])
    op.create_index(op.f("ix_ranks_program_id"), "ranks", ["program_id"])

    op.create_table(
        "storages",
        sa.Column("program_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("storage", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("layer", sa.Text(), nullable=False),
        sa.Column("part_of", sa.BigInteger(), nullable=True),
        sa.Column("resident_at_start", sa.Boolean(), nullable=False),
        sa.Column("resident_at_end", sa.Boolean(), nullable=False),
        sa.Column("offloadable", sa.Boolean(), nullable=False),
        sa.Column("alive_from", sa.Integer(), nullable=False),
        sa.Column("alive_until", sa.Integer(), nullable=False),
        sa.Column("reads", sa.Integer(), nullable=False),
        sa.Column("writes", sa.Integer(), nullable=False),
        sa.Column("accesses", sa.LargeBinary(), nullable=False),
        sa.Column("steps_observed", sa.BigInteger(), nullable=False),
        sa.Column("steps_accessed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["program_id"], ["programs.id"], name=op.f("fk_storages_program_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("program_id", "storage", name=op.f("pk_storages")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_storages_program_id_alive_from_alive_until"),
        "storages",
        ["program_id", "alive_from", "alive_until"],
    )

    op.create_table(
        "plans",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.Column("program_digest", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["ranks.id"], name=op.f("fk_plans_profile_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_profile_id"), "plans", ["profile_id"])

    op.create_table(
        "timings",
        sa.Column("rank_id", sa.Text(), nullable=False),
        sa.Column("duration_ns", sa.LargeBinary(), nullable=False),
        sa.Column("start_ns", sa.LargeBinary(), nullable=False),
        sa.Column("end_ns", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rank_id"], ["ranks.id"], name=op.f("fk_timings_rank_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("rank_id", name=op.f("pk_timings")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("profile_id", sa.Text(), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("plan_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_jobs_plan_id")),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["ranks.id"], name=op.f("fk_jobs_profile_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_created_at"), "jobs", ["created_at"])
    op.create_index(op.f("ix_jobs_profile_id"), "jobs", ["profile_id"])

    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_events")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("job_events")
    op.drop_table("jobs")
    op.drop_table("timings")
    op.drop_table("plans")
    op.drop_table("storages")
    op.drop_table("ranks")
    op.drop_table("operators")
    op.drop_table("runs")
    op.drop_table("programs")
    op.drop_table("projects")
    op.drop_table("documents")
