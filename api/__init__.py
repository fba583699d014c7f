"""The HTTP service: profiles in, plans out, jobs in between. The only room that knows FastAPI and DBOS.

    app.py        create_app: what belongs together, for one Settings
    problems.py   every error as an RFC 9457 problem document
    profiles.py   /v1/profiles        plans.py  /v1/plans        jobs.py  /v1/jobs
    archives.py   /v1/archives: what other profilers wrote, read by `profiler.read`
    cost_models.py  /v1/cost-models            predictions.py  predicted beside measured, of profiles and plans
    engine.py     JobEngine, the port to durable jobs, and DBOS behind it
    work.py       what a job does when its turn comes        training.py  what one does that trains cost models
    openapi.py    writes docs/reference/openapi.json

The reference is docs/reference/http.md.
"""
