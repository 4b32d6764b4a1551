"""Several subsets of one run, in your own process; nothing needs to run beforehand."""

import os

import lipt
from mine import data, model

quick = {"learners": {"num_steps": int(os.environ.get("STEPS", "10"))}}
with lipt.Session(data(), model) as session:
    run = session.pretrain(quick, seed=0)
    # The client that a cluster's coordinator would have.
    for strategy in ("el2n", "craig", "uniform"):
        subset = session.client.subset(run.run_id, strategy, fraction=0.1)
        print(f"{strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
