"""Several subsets of one pre-training, in your own process; nothing needs to run beforehand."""

import os

import lipt
from mine import data, model

quick = {"learners": {"num_steps": int(os.environ.get("STEPS", "10"))}}
pretrained = lipt.pretrain(data(), model, run=quick, seed=0)
kept = sum(part.kept for part in pretrained.soup.values())
print(f"theta_p is made of {kept} of {len(pretrained.learners)} learners")
for strategy in ("el2n", "craig", "uniform"):
    subset = pretrained.select(strategy, fraction=0.1)
    print(f"{strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
