"""Start a run from Python, follow it, and take its weights."""

import os

from lipt import Client

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    overrides = {"seed": 1, "learners": {"num_learners": 2, "num_steps": 5, "batch_size": 64}}
    started = client.start_run(overrides, name="from-python")
    for run in client.watch(started.run_id):  # every change once, until the run has ended
        done = sum(learner.state == "done" for learner in run.learners)
        print(f"{run.state}: {done} of {len(run.learners)} learners {run.message}".rstrip())
    client.save_weights("theta_p.safetensors", started.run_id)
    print(f"soup {100 * run.soup.soup_accuracy:.1f}%, kept {run.soup.num_kept} learners")
