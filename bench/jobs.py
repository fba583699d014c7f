"""How many accepted jobs does kill -9 lose? `python -m bench.jobs [--jobs 60] [--kills 5] [--database-url URL]`

A real server with the real solver: n jobs are queued, then the server is killed at random moments and started
again, until all are finished. Prints one line of JSON; exits 1 if a job was lost or came out otherwise than
succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hyperopt.client import Client
from tests.samples import MIB, encoded, worked_example

ROOT = Path(__file__).parents[1]
SERVE = [sys.executable, "-c", "from hyperopt.cli import main; main()", "serve", "--json", "--port", "0"]


def start(folder: str, database_url: str) -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HYPEROPT_WORKER_JOBS": "2"}
    environment |= {"HYPEROPT_DATA_DIR": folder, "HYPEROPT_DATABASE_URL": database_url}
    process = subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


def main(jobs: int, kills: int, database_url: str, seed: int) -> int:
    rng = random.Random(seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(folder, database_url)
        with Client(url) as client:
            profile = client.upload(encoded(worked_example(name=f"bench {time.time()}")))["id"]
            ids = [client.plan(profile, hbm_bytes=(640 + i) * MIB, time_limit_s=10.0)["id"] for i in range(jobs)]
        running_at_kill = 0
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 3.0))
            with Client(url) as client:
                running_at_kill += sum(client.job(id)["state"] == "running" for id in ids)
            process.kill()
            process.communicate()
            process, url = start(folder, database_url)
        with Client(url) as client:
            finished = [client.wait(id) for id in ids]
            plans = {client.fetch_plan(job["result"]["plan_id"]).plan_id for job in finished if job["plan"]}
        process.terminate()
        process.communicate()
    states = Counter(job["state"] for job in finished)
    attempts = Counter(job["attempts"] for job in finished)
    figures = {
        "database": database_url.partition(":")[0] or "sqlite",
        "jobs": jobs,
        "kills": kills,
        "running_when_killed": running_at_kill,
        "states": dict(states),
        "attempts": {str(n): attempts[n] for n in sorted(attempts)},
        "plans": len(plans),
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figures))
    return 0 if states == {"succeeded": jobs} else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(main(given.jobs, given.kills, given.database_url, given.seed))
