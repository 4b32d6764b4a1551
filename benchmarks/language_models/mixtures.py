"""Experiment A: predicted shares of sources against real trainings on mixtures.

12 sources: 4 of texts, 7 families of tasks, and one of them with wrong completions. 3 targets that
are no source: Spanish, C++, and two of the tasks, half of each.

Shapes: K sources, R mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.language_models.baselines import bm25, cosines, shares_of_nearest, words_of
from benchmarks.language_models.sources import (
    FAMILIES,
    NUM_TOKENS,
    Encoded,
    drawn,
    encoded,
    joined,
    text_blocks,
    wrong,
)
from benchmarks.language_models.training import (
    exact_match,
    gradient_shares,
    hidden_means,
    losses_of,
    merged_of,
    mixed_batches,
    new_model,
    train,
)
from lipt.core.mixture.baselines import by_size, lone_ranking
from lipt.core.mixture.ngrams import ngram_probabilities, ngram_shares
from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.values import MASKED

SHARED_STEPS, REAL_STEPS = 1500, 120
# Two learners of each source: a quarter of the steps of 16 real trainings.
LEARNER_STEPS = 20
NUM_RANDOM, CONCENTRATION = 16, 0.4
NUM_FIT, NUM_TEST = 64, 300
_MOST_NEAREST = 400
# Choices that are trained on; others are close to one of them.
TRAINED = ("merged", "n-grams", "lone ranking", "rds", "bm25")

Record = Callable[[str, Callable[[], Any]], Any]


def sources_of(seed: int) -> dict[str, Encoded]:
    texts = {"python": 6000, "c": 4000, "french": 3000, "german": 3000}
    found = {name: text_blocks(name, number, seed) for name, number in texts.items()}
    names = [name for name in FAMILIES if name != "double"]
    for place, name in enumerate(names):
        found[name] = encoded(drawn(FAMILIES[name], 2000, 100 * seed + place))
    found["reverse, wrong"] = encoded(
        wrong(drawn(FAMILIES["reverse"], 2000, 100 * seed + 50), seed)
    )
    return found


def targets_of(seed: int) -> dict[str, Encoded]:
    number = NUM_FIT + NUM_TEST
    tasks = [
        one
        for pair in zip(
            drawn(FAMILIES["reverse"], number // 2, 100 * seed + 60),
            drawn(FAMILIES["sort"], number // 2, 100 * seed + 61),
            strict=True,
        )
        for one in pair
    ]
    return {
        "spanish": text_blocks("spanish", number, seed),
        "c++": text_blocks("c++", number, seed),
        "tasks": encoded(tasks),
    }


def shared_weights(seed: int, sources: list[Encoded], record: Record) -> dict[str, Tensor]:
    initial = new_model(seed).state_dict()
    batches = mixed_batches(sources, uniform(len(sources)), SHARED_STEPS, 1000 * seed)
    weights: dict[str, Tensor] = record(
        "theta", lambda: train(initial, batches, learning_rate=2e-3)
    )
    return weights


def measure(seed: int, record: Record) -> Iterator[dict[str, Any]]:
    """A line for each step; `record` computes a value once and keeps it on disk."""
    named, targets = sources_of(seed), targets_of(seed)
    sources, names = list(named.values()), list(named)
    equal_K = uniform(len(sources))
    theta = shared_weights(seed, sources, record)

    def learner(source: int, half: int) -> dict[str, Tensor]:
        own_K = torch.eye(len(sources))[source]
        batches = mixed_batches(sources, own_K, LEARNER_STEPS, 1000 * seed + 10 * source + half)
        return train(theta, batches)

    halves = [
        [record(f"learner-{k}-{half}", partial(learner, k, half)) for k in range(len(names))]
        for half in range(2)
    ]
    added_halves = [
        {name: torch.stack([one[name] for one in half]) - theta[name] for name in theta}
        for half in halves
    ]

    def real(name: str, shares_K: Tensor) -> dict[str, list[float]]:
        batches = mixed_batches(sources, shares_K, REAL_STEPS, 7_000 + 100 * seed)
        weights = record(f"real-{name}", lambda: train(theta, batches))
        found = {
            one: [float(losses_of(weights, examples[NUM_FIT:]).mean())]
            for one, examples in targets.items()
        }
        found["tasks"].append(exact_match(weights, targets["tasks"][NUM_FIT:]))
        return found

    torch.manual_seed(1000 + seed)
    prior = torch.distributions.Dirichlet(torch.full((len(names),), CONCENTRATION).double())
    random_RK = prior.sample(torch.Size((NUM_RANDOM,)))
    sizes_K = torch.tensor([len(source) for source in sources])
    common = {"uniform": equal_K, "size": by_size(sizes_K)}
    fits = {
        target: record(
            f"fit-{target}",
            partial(fitted, theta, added_halves, sources, examples, random_RK, seed),
        )
        for target, examples in targets.items()
    }
    for target, one in fits.items():
        yield {"seed": seed, "target": target, "sources": names, **one}
    common |= {f"random {row}": shares_K for row, shares_K in enumerate(random_RK)}
    for name, shares_K in common.items():
        same = {"seed": seed, "mixture": name, "shares": shares_K.tolist()}
        yield {**same, "real": real(name, shares_K)}
    for target, one in fits.items():
        for name in TRAINED:
            shares_K = torch.tensor(one["shares"][name]).double()
            found = real(f"{target}-{name}", shares_K)
            yield {"seed": seed, "mixture": name, "target": target, "real": found}


def fitted(
    theta: dict[str, Tensor],
    added_halves: list[dict[str, Tensor]],
    sources: list[Encoded],
    examples: Encoded,
    random_RK: Tensor,
    seed: int,
) -> dict[str, Any]:
    """The shares of each choice for a target, and its predictions of the random mixtures."""
    own, test, num_sources = examples[:NUM_FIT], examples[NUM_FIT:], len(sources)
    first, second = added_halves
    added = {name: (first[name] + second[name]) / 2 for name in theta}
    # Shuffled: equal scores are taken in order.
    order = np.random.default_rng(seed).permutation(num_sources * _MOST_NEAREST)
    owners = order // _MOST_NEAREST
    pool = joined([source[:_MOST_NEAREST] for source in sources])[torch.from_numpy(order)]
    merged = merged_of(theta, added, own)
    fit = merged.fit(seed=seed)
    texts, wanted_NL = [(one.tokens_NL, one.wanted_NL) for one in sources], own.wanted_NL
    density_XK, bigram_XK = (
        ngram_probabilities(texts, (own.tokens_NL, wanted_NL), NUM_TOKENS, order)
        for order in (3, 2)
    )
    every_N, corners = torch.arange(len(own)), torch.eye(num_sources).double()
    lone_K = torch.stack([merged.losses_at(one).mean() for one in corners])
    hidden = [hidden_means(theta, one) for one in (pool, own)]
    by_half = [
        merged_of(theta, half, own).fit(seed=seed, num_resamples=0).weights_K.tolist()
        for half in added_halves
    ]
    chosen = {
        "merged": fit.weights_K,
        "merged, network's gradient": gradient_shares(merged, own),
        "n-grams": ngram_shares(density_XK, wanted_NL, every_N),
        "bigrams": ngram_shares(bigram_XK, wanted_NL, every_N),
        "lone ranking": lone_ranking(lone_K),
        "best lone": corners[lone_K.argmin()],
        "rds": shares_of_nearest(cosines(*hidden), owners, num_sources),
        "bm25": shares_of_nearest(bm25(words_of(pool), words_of(own)), owners, num_sources),
    }
    counted_NL = wanted_NL != MASKED
    share_X = (counted_NL / counted_NL.sum(dim=1, keepdim=True) / len(own))[counted_NL]
    predicted = {
        "merged": torch.stack([merged.losses_at(one).mean() for one in random_RK]),
        "merged, quadratic at equal shares": merged.linearized(uniform(num_sources))(
            random_RK
        ).mean(dim=1),
        "lone": random_RK @ lone_K.double(),
        "n-grams": -((random_RK @ density_XK.T).log() @ share_X.double()),
    }
    return {
        "shares": {name: one.tolist() for name, one in chosen.items()},
        "predicted": {name: one.tolist() for name, one in predicted.items()},
        "low": fit.low_K.tolist(),
        "high": fit.high_K.tolist(),
        "strength": fit.strength,
        "halves": by_half,
        "theta": float(losses_of(theta, test).mean()),
        "at theta(w)": float(losses_of(merged.weights(fit.weights_K), test).mean()),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rank correlations by target, and each choice's loss and share of the gap, by seed."""
    for seed in sorted({line["seed"] for line in lines}):
        own = [line for line in lines if line["seed"] == seed]
        fits = {line["target"]: line for line in own if "predicted" in line}
        reals = [line for line in own if "real" in line]
        for target, one in fits.items():
            losses = {
                line["mixture"]: line["real"][target][0]
                for line in reals
                if line.get("target", target) == target
            }
            tried = [loss for name, loss in losses.items() if name.startswith("random")]
            yield f"\nseed {seed}, target {target}: theta* {one['theta']:.3f}"
            for name, predicted in one["predicted"].items():
                yield f"  rank correlation, {name}: {rank_correlation(predicted, tried):.2f}"
            whole = losses["uniform"] - min(tried)
            for name, loss in [*losses.items(), ("best of 16", min(tried))]:
                if not name.startswith("random"):
                    closed = (losses["uniform"] - loss) / whole
                    yield f"  {name:14} loss {loss:.3f}, {closed:.0%} of the gap"


def rank_correlation(predicted: list[float], losses: list[float]) -> float:
    """Spearman's."""
    return float(np.corrcoef(rankdata(predicted), rankdata(losses))[0, 1])
