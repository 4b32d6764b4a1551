"""Experiment A: predicted shares of sources against real trainings on mixtures.

12 sources: 4 of texts, 7 families of tasks, and one of them with wrong completions. 3 targets that
are no source: two kinds of text, and two tasks in another phrasing.

Shapes: K sources, R mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.language_models.baselines import (
    bm25,
    cosines,
    ngram_densities,
    ngram_shares,
    shares_of_nearest,
    token_shares,
    words_of,
)
from benchmarks.language_models.sources import (
    FAMILIES,
    Encoded,
    Example,
    drawn,
    encoded,
    joined,
    text_blocks,
    wrong,
)
from benchmarks.language_models.training import (
    exact_match,
    fit_quadratic,
    gradient_shares,
    hidden_means,
    losses_of,
    merged_weights,
    mixed_batches,
    new_model,
    quadratic_losses,
    train,
)
from lipt.core.mixture.baselines import by_size, lone_ranking
from lipt.core.mixture.simplex import uniform

SHARED_STEPS, REAL_STEPS = 2000, 200
# Two learners of each source: a quarter of the steps of 16 real trainings.
LEARNER_STEPS = 33
NUM_RANDOM, CONCENTRATION = 16, 0.4
NUM_FIT, NUM_TEST = 64, 300
_MOST_NEAREST = 400

Record = Callable[[str, Callable[[], Any]], Any]


def phrased(examples: list[Example]) -> list[Example]:
    """The tasks in words that no source has: the operand and the answer alone."""
    return [(prompt.split(": ")[1].replace(" =", " ->"), answer) for prompt, answer in examples]


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
            phrased(drawn(FAMILIES["reverse"], number // 2, 100 * seed + 60)),
            phrased(drawn(FAMILIES["sort"], number // 2, 100 * seed + 61)),
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
    return record("theta", lambda: train(initial, batches, learning_rate=2e-3))


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
        [
            record(f"learner-{k}-{half}", lambda k=k, half=half: learner(k, half))
            for k in range(len(names))
        ]
        for half in range(2)
    ]
    added_halves = [
        {name: torch.stack([one[name] for one in half]) - theta[name] for name in theta}
        for half in halves
    ]
    added = {name: sum(half[name] for half in added_halves) / 2 for name in theta}

    def real(shares_K: Tensor, draw: int) -> dict[str, list[float]]:
        weights = train(
            theta, mixed_batches(sources, shares_K, REAL_STEPS, 7_000 + 100 * seed + draw)
        )
        found = {
            one: [float(losses_of(weights, examples[NUM_FIT:]).mean())]
            for one, examples in targets.items()
        }
        found["tasks"].append(exact_match(weights, targets["tasks"][NUM_FIT:]))
        return found

    torch.manual_seed(1000 + seed)
    prior = torch.distributions.Dirichlet(torch.full((len(names),), CONCENTRATION).double())
    random_RK = prior.sample(torch.Size((NUM_RANDOM,)))
    reals = dict[str, dict[str, list[float]]]()
    sizes_K = torch.tensor([len(source) for source in sources])
    common = {"uniform": equal_K, "size": by_size(sizes_K)}
    owners = np.repeat(np.arange(len(names)), _MOST_NEAREST)
    pool = joined([source[:_MOST_NEAREST] for source in sources])
    fits = dict[str, Any]()
    for target, examples in targets.items():
        own = examples[:NUM_FIT]

        def shares() -> dict[str, Any]:
            fitted = fit_quadratic(theta, added, own, seed)
            density_XK = ngram_densities(sources, own)
            corners = torch.eye(len(names)).double()
            lone_K = torch.stack(
                [losses_of(merged_weights(theta, added, one), own).mean() for one in corners]
            )
            hidden = [hidden_means(theta, one) for one in (pool, own)]
            by_half = [
                fit_quadratic(theta, half, own, seed).weights_K.tolist() for half in added_halves
            ]
            merged_R = [
                losses_of(merged_weights(theta, added, one), own).mean() for one in random_RK
            ]
            flat = quadratic_losses(theta, added, equal_K, own)(random_RK).mean(dim=1)
            chosen = {
                "merged": fitted.weights_K,
                "merged, network's gradient": gradient_shares(theta, added, own),
                "n-grams": ngram_shares(density_XK, token_shares(own)),
                "bigrams": ngram_shares(ngram_densities(sources, own, 2), token_shares(own)),
                "lone ranking": lone_ranking(lone_K),
                "best lone": corners[lone_K.argmin()],
                "rds": shares_of_nearest(cosines(*hidden), owners, len(names)),
                "bm25": shares_of_nearest(bm25(words_of(pool), words_of(own)), owners, len(names)),
            }
            predicted = {
                "merged": torch.stack(merged_R),
                "merged, quadratic at equal shares": flat,
                "lone": random_RK @ lone_K.double(),
                "n-grams": -((random_RK @ density_XK.T).log() @ token_shares(own)),
            }
            return {
                "shares": {name: one.tolist() for name, one in chosen.items()},
                "predicted": {name: one.tolist() for name, one in predicted.items()},
                "low": fitted.low_K.tolist(),
                "high": fitted.high_K.tolist(),
                "strength": fitted.strength,
                "halves": by_half,
                "theta": float(losses_of(theta, examples[NUM_FIT:]).mean()),
                "at theta(w)": float(
                    losses_of(
                        merged_weights(theta, added, fitted.weights_K), examples[NUM_FIT:]
                    ).mean()
                ),
            }

        fits[target] = record(f"fit-{target}", shares)
        yield {"seed": seed, "target": target, "sources": names, **fits[target]}
    for name, shares_K in common.items():
        reals[name] = record(f"real-{name}", lambda shares_K=shares_K: real(shares_K, 0))
        yield {"seed": seed, "mixture": name, "shares": shares_K.tolist(), "real": reals[name]}
    for row, shares_K in enumerate(random_RK):
        found = record(f"real-{row}", lambda shares_K=shares_K: real(shares_K, 0))
        reals[f"random {row}"] = found
        yield {"seed": seed, "mixture": f"random {row}", "shares": shares_K.tolist(), "real": found}
    for target, fitted in fits.items():
        for name, shares in fitted["shares"].items():
            found = record(
                f"real-{target}-{name}",
                lambda shares=shares: real(torch.tensor(shares).double(), 0),
            )
            yield {"seed": seed, "mixture": name, "target": target, "real": found}


def rank_correlation(predicted: list[float], losses: list[float]) -> float:
    """Spearman's."""
    return float(np.corrcoef(rankdata(predicted), rankdata(losses))[0, 1])
