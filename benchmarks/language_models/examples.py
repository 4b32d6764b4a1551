"""Experiment B: examples of a pool for a target, by one short learner and by rivals.

A pool of 3,000: the target's task in the target's words, right or wrong; the target's words for
another task; and other tasks. 30% of all completions are wrong. In the clean pool none is, and
the target's words mean one task. Every choice is trained on for as many steps from theta*.

Shapes: N target examples, M pool examples, P chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.language_models.baselines import bm25, cosines, round_robin, words_of
from benchmarks.language_models.mixtures import Record, shared_weights, sources_of
from benchmarks.language_models.sources import (
    FAMILIES,
    Encoded,
    Example,
    drawn,
    encoded,
    wrong,
)
from benchmarks.language_models.training import (
    exact_match,
    hidden_means,
    losses_of,
    mixed_batches,
    train,
)

# A target's words, its task, and the task that some of the pool means by the same words.
TARGETS = {
    "backwards": ("reverse", "upper"),
    "in order": ("sort", "largest"),
    "next": ("shift", "reverse"),
}
NUM_POOL, SHARE_WRONG = 3000, 0.3
NUM_RIGHT, NUM_BAD, NUM_OTHER_MEANING = 300, 200, 300
NUM_CHOSEN, NUM_FIT, NUM_TEST, NUM_STEPS = 150, 64, 300, 100
LEARNER_STEPS = (8, 30)
NUM_DRAWS = 1


@dataclass(frozen=True)
class Pool:
    """Examples, and the rows that an oracle would take: the target's task, right."""

    examples: Encoded
    right_P: np.ndarray
    is_wrong_M: np.ndarray


def _worded(examples: list[Example], words: str, family: str) -> list[Example]:
    """A family's examples under other words; three numbers become their digits."""
    before = "count a" if family == "count" else family
    return [(prompt.replace(before, words, 1), answer) for prompt, answer in examples]


def pool_of(words: str, seed: int, *, clean: bool) -> Pool:
    task, other = TARGETS[words]
    counts = (NUM_RIGHT, 0, 0) if clean else (NUM_RIGHT, NUM_BAD, NUM_OTHER_MEANING)
    parts = [
        _worded(drawn(FAMILIES[task], counts[0], seed), words, task),
        wrong(_worded(drawn(FAMILIES[task], counts[1], seed + 1), words, task), seed),
        _worded(drawn(FAMILIES[other], counts[2], seed + 2), words, other),
    ]
    rest = NUM_POOL - sum(counts)
    num_wrong = 0 if clean else round(SHARE_WRONG * NUM_POOL) - NUM_BAD
    names = [name for name in FAMILIES if name != task]
    others = [
        drawn(FAMILIES[name], -(-rest // len(names)), seed + 10 + at)
        for at, name in enumerate(names)
    ]
    bad = num_wrong // len(names)
    wrongs = list[bool]()
    rows = list[Example]()
    for examples in others:
        rows += wrong(examples[:bad], seed) + examples[bad:] if bad else examples
        wrongs += [at < bad for at in range(len(examples))]
    whole = [*parts[0], *parts[1], *parts[2], *rows][:NUM_POOL]
    is_wrong = np.array([False] * counts[0] + [True] * counts[1] + [False] * counts[2] + wrongs)[
        :NUM_POOL
    ]
    order = np.random.default_rng(seed).permutation(len(whole))
    right_P = np.flatnonzero(order < counts[0])
    return Pool(encoded([whole[row] for row in order]), right_P, is_wrong[order])


def measure(seed: int, record: Record) -> Iterator[dict[str, Any]]:
    """A line for each target, pool and choice."""
    theta = shared_weights(seed, list(sources_of(seed).values()), record)
    for clean in (False, True):
        for words, (task, _) in TARGETS.items():
            target = encoded(
                _worded(drawn(FAMILIES[task], NUM_FIT + NUM_TEST, 10_000 + seed), words, task)
            )
            pool = pool_of(words, 20_000 + 100 * seed, clean=clean)
            name = f"examples-{words}-{'clean' if clean else 'wrong'}"

            def chosen(target: Encoded = target, pool: Pool = pool) -> dict[str, Tensor]:
                return _choices(theta, target[:NUM_FIT], pool, seed)

            def trained(
                rows: Tensor, draw: int, target: Encoded = target, pool: Pool = pool
            ) -> list[float]:
                part = target[:NUM_FIT] if rows.numel() == 0 else pool.examples[rows]
                batches = mixed_batches([part], torch.ones(1), NUM_STEPS, 100 * seed + draw)
                return _scores(train(theta, batches), target[NUM_FIT:])

            same = {
                "seed": seed,
                "target": words,
                "clean": clean,
                "wrong": float(pool.is_wrong_M.mean()),
            }
            yield {**same, "choice": "no training", "results": [_scores(theta, target[NUM_FIT:])]}
            for choice, rows in record(name, chosen).items():
                results = [
                    record(f"{name}-{choice}-{draw}", partial(trained, rows, draw))
                    for draw in range(NUM_DRAWS)
                ]
                right = float(np.isin(rows.numpy(), pool.right_P).mean()) if len(rows) else 0.0
                yield {**same, "choice": choice, "right": right, "results": results}


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each choice's losses and exact matches by pool and target, means over seeds."""
    groups: dict[tuple[bool, str], dict[str, list[list[float]]]] = {}
    for line in lines:
        choices = groups.setdefault((line["clean"], line["target"]), {})
        choices.setdefault(line["choice"], []).extend(line["results"])
    for (clean, target), choices in groups.items():
        yield f"\n{'clean pool' if clean else 'pool with wrong answers'}, target {target!r}"
        for name, results in choices.items():
            loss, right = np.mean(results, axis=0)
            yield f"  {name:32} loss {loss:.4f}, exact match {right:.1%}"


def _scores(weights: dict[str, Tensor], test: Encoded) -> list[float]:
    """Loss and exact match."""
    return [float(losses_of(weights, test).mean()), exact_match(weights, test)]


def _choices(theta: dict[str, Tensor], target: Encoded, pool: Pool, seed: int) -> dict[str, Tensor]:
    """Rows of the pool by choice; none for the target's own examples."""
    draws = np.random.default_rng(seed)
    before_M = losses_of(theta, pool.examples)
    cosines_NM = cosines(hidden_means(theta, pool.examples), hidden_means(theta, target))
    words_NM = bm25(words_of(pool.examples), words_of(target))
    # The half with the smaller loss under theta*.
    high_M = (before_M > before_M.median()).numpy()
    found = {
        "random": draws.choice(NUM_POOL, NUM_CHOSEN, replace=False),
        "everything": np.arange(NUM_POOL),
        "target's own": np.empty(0, dtype=np.int64),
        "rds_plus": round_robin(cosines_NM, NUM_CHOSEN),
        "bm25": round_robin(words_NM, NUM_CHOSEN),
        "least base loss": np.argsort(before_M.numpy(), kind="stable")[:NUM_CHOSEN],
        "rds_plus, less base loss": round_robin(np.where(high_M, -9, cosines_NM), NUM_CHOSEN),
        "bm25, less base loss": round_robin(np.where(high_M, -9, words_NM), NUM_CHOSEN),
        "oracle": draws.choice(pool.right_P, NUM_CHOSEN, replace=False),
    }
    for steps in LEARNER_STEPS:
        learner = train(theta, mixed_batches([target], torch.ones(1), steps, seed))
        after_M = losses_of(learner, pool.examples)
        found[f"loss_drop, {steps} steps"] = _best((before_M - after_M) / before_M)
        if steps == LEARNER_STEPS[0]:
            # Not the largest drops alone, which are of easy examples.
            rows_C = _best((before_M - after_M) / before_M, 2 * NUM_CHOSEN)
            found["loss_drop, random of twice as many"] = draws.permutation(rows_C)[:NUM_CHOSEN]
            near = round_robin(cosines_NM[:, rows_C], NUM_CHOSEN)
            found["loss_drop, rds_plus of twice as many"] = rows_C[near]
        if steps == LEARNER_STEPS[1]:
            found[f"loss drop, absolute, {steps} steps"] = _best(before_M - after_M)
    return {name: torch.from_numpy(np.asarray(rows)) for name, rows in found.items()}


def _best(scores_M: Tensor, number: int = NUM_CHOSEN) -> np.ndarray:
    return scores_M.argsort(descending=True, stable=True)[:number].numpy()
