"""Experiment C: wrong completions of a pool, by losses of learners that have not seen them.

The pools with wrong answers of experiment B: 30% of 3,000 completions are wrong. Learners start
from theta*, which knows the tasks in other words, or from random weights. Each trains on all but
one part of the pool, and its losses are those of that part. The precision is that of the examples
with the largest scores, as many as are wrong.

Shapes: M pool examples, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.language_models.examples import TARGETS, pool_of
from benchmarks.language_models.mixtures import Record, shared_weights, sources_of
from benchmarks.language_models.sources import Encoded
from benchmarks.language_models.training import (
    losses_of,
    mixed_batches,
    new_model,
    train,
)
from lipt.core.diagnosis.completions import completion_quality, prompt_features

NUM_PARTS = 4
# Of each learner: from theta*, and from random weights.
STEPS = {"theta*": 100, "random weights": 600}


def measure(seed: int, record: Record) -> Iterator[dict[str, Any]]:
    """A line for each pool, start and score."""
    theta = shared_weights(seed, list(sources_of(seed).values()), record)
    starts = {"theta*": theta, "random weights": new_model(seed).state_dict()}
    for words in TARGETS:
        pool = pool_of(words, 20_000 + 100 * seed, clean=False)
        features_MD = prompt_features(pool.examples.tokens_NL, pool.examples.wanted_NL)
        for start, initial in starts.items():
            losses = {
                "before training": losses_of(initial, pool.examples),
                "unseen": record(
                    f"completions-{words}-{start}",
                    partial(_losses, initial, pool.examples, STEPS[start], seed),
                ),
            }
            for name, losses_M in losses.items():
                draws = torch.Generator().manual_seed(seed)
                quality_M = completion_quality(losses_M, features_MD, generator=draws)
                for score, scores_M in (("loss", losses_M), ("to similar prompts", -quality_M)):
                    number = int(pool.is_wrong_M.sum())
                    worst = scores_M.argsort(descending=True, stable=True)[:number].numpy()
                    yield {
                        "seed": seed,
                        "target": words,
                        "start": start,
                        "score": f"{score}, {name}",
                        "base rate": float(pool.is_wrong_M.mean()),
                        "precision": float(pool.is_wrong_M[worst].mean()),
                    }


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each score's precision by pool, one number for each seed."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in lines:
        scores = groups.setdefault((line["start"], line["score"]), {})
        scores.setdefault(line["target"], []).append(line["precision"])
    for (start, score), targets in groups.items():
        found = (
            f"{name} {' '.join(f'{one:.3f}' for one in each)}" for name, each in targets.items()
        )
        yield f"from {start}, {score}: {'; '.join(found)}"


def _losses(initial: Mapping[str, Tensor], pool: Encoded, steps: int, seed: int) -> Tensor:
    """Each example's loss under a learner that has not seen it."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    losses_M = torch.empty(len(pool))
    for part in range(NUM_PARTS):
        held_out = order[part::NUM_PARTS]
        is_seen_M = torch.ones(len(pool), dtype=torch.bool)
        is_seen_M[held_out] = False
        seen = pool[is_seen_M.nonzero().flatten()]
        batches = mixed_batches([seen], torch.ones(1), steps, 100 * seed + part)
        losses_M[held_out] = losses_of(train(initial, batches), pool[held_out])
    return losses_M
