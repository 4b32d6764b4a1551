"""Experiment A: predicted shares of sources against real trainings on mixtures.

12 sources: 4 of texts, 7 families of tasks, and one of them with wrong completions. 3 targets that
are no source: Spanish, C++, and two of the tasks, half of each.

Shapes: N examples, K sources, R mixtures, S resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.language_models.baselines import bm25, cosines, shares_of_nearest, words_of
from benchmarks.language_models.sources import (
    FAMILIES,
    Encoded,
    drawn,
    encoded,
    joined,
    text_blocks,
    wrong,
)
from benchmarks.language_models.training import (
    SMALL,
    Network,
    Weights,
    gradient_shares,
    hidden_means,
    losses_of,
    merged_of,
    mixed_batches,
    new_model,
    score,
    train,
)
from lipt.core.mixture.comparison import by_size, lone_ranking
from lipt.core.mixture.ngrams import ngram_probabilities, ngram_shares
from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.values import MASKED

SHARED_STEPS, REAL_STEPS = 1500, 120
# Two learners of each source: a quarter of the steps of 16 real trainings.
LEARNER_STEPS = 20
NUM_RANDOM, CONCENTRATION = 16, 0.4
NUM_FIT, NUM_TEST, NUM_NEAREST = 64, 300, 400
# Choices that are trained on; others are close to one of them.
TRAINED = ("merged", "n-grams", "lone ranking", "rds", "bm25")

Record = Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True)
class Setup:
    """Sources, targets, and the lengths of learners and of real trainings.

    learner_steps: of each of two learners of a source. real_steps: of a training on a mixture.
    num_fit: examples of a target, which come before those of its test.
    num_nearest: examples of each source among which a target's nearest are looked for.
    thorough: whether a fit is compared with that through the network, and of half the learners.
    """

    network: Network
    theta: Weights
    sources: Mapping[str, Encoded]
    targets: Mapping[str, Encoded]
    learner_steps: int
    real_steps: int
    num_fit: int
    num_nearest: int
    thorough: bool


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
    sources = sources_of(seed)
    theta = shared_weights(seed, list(sources.values()), record)
    setup = Setup(
        *(SMALL, theta, sources, targets_of(seed), LEARNER_STEPS, REAL_STEPS, NUM_FIT, NUM_NEAREST),
        thorough=True,
    )
    return measured(setup, seed, record)


def measured(setup: Setup, seed: int, record: Record) -> Iterator[dict[str, Any]]:
    network, theta = setup.network, setup.theta
    sources, names = list(setup.sources.values()), list(setup.sources)
    equal_K = uniform(len(sources))

    def learner(source: int, half: int) -> Weights:
        own_K = torch.eye(len(sources))[source]
        draws = 1000 * seed + 10 * source + half
        batches = mixed_batches(sources, own_K, setup.learner_steps, draws, network)
        return train(theta, batches, network=network)

    halves = [
        [record(f"learner-{k}-{half}", partial(learner, k, half)) for k in range(len(names))]
        for half in range(2)
    ]
    added_halves = [
        {name: torch.stack([one[name] for one in half]) - theta[name] for name in theta}
        for half in halves
    ]

    def real(name: str, shares_K: Tensor, targets: Collection[str]) -> dict[str, Any]:
        """By target each test example's loss, and the share of right answers."""
        batches = mixed_batches(sources, shares_K, setup.real_steps, 7_000 + 100 * seed, network)
        weights = record(f"real-{name}", lambda: train(theta, batches, network=network))
        return record(f"tested-{name}", partial(tested, setup, weights, targets))

    torch.manual_seed(1000 + seed)
    prior = torch.distributions.Dirichlet(torch.full((len(names),), CONCENTRATION).double())
    random_RK = prior.sample(torch.Size((NUM_RANDOM,)))
    sizes_K = torch.tensor([len(source) for source in sources])
    common = {"uniform": equal_K, "size": by_size(sizes_K)}
    common |= {f"random {row}": shares_K for row, shares_K in enumerate(random_RK)}
    before = record("tested-theta", partial(tested, setup, theta, setup.targets))
    yield {"seed": seed, "sources": names, "mixture": "theta*", "real": before}
    for name, shares_K in common.items():
        same = {"seed": seed, "mixture": name, "shares": shares_K.tolist()}
        yield {**same, "real": real(name, shares_K, setup.targets)}
    pool = pool_of(setup, record, seed)
    for target in setup.targets:
        one = fitted(setup, target, added_halves, random_RK, pool, record, seed)
        yield {"seed": seed, "target": target, **one}
        for name in TRAINED:
            shares_K = torch.tensor(one["shares"][name]).double()
            found = real(f"{target}-{name}", shares_K, [target])
            yield {"seed": seed, "mixture": name, "target": target, "real": found}


def tested(setup: Setup, weights: Weights, targets: Collection[str]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name in targets:
        examples = setup.targets[name][setup.num_fit :]
        losses_N, is_right_N = score(weights, examples, setup.network)
        right = float(is_right_N.float().mean())
        found[name] = [[round(loss, 4) for loss in losses_N.tolist()], right]
    return found


@dataclass(frozen=True)
class Pool:
    """As many examples of each source, shuffled, since equal scores are taken in order.

    hidden_MD: means of hidden states under theta*. owners: each example's source.
    """

    hidden_MD: Tensor
    words: list[list[str]]
    owners: np.ndarray


def pool_of(setup: Setup, record: Record, seed: int) -> Pool:
    sources = list(setup.sources.values())
    order = np.random.default_rng(seed).permutation(len(sources) * setup.num_nearest)
    examples = joined([source[: setup.num_nearest] for source in sources])[torch.from_numpy(order)]
    hidden_MD = record("hidden", lambda: hidden_means(setup.theta, examples, setup.network))
    return Pool(hidden_MD, words_of(examples, setup.network), order // setup.num_nearest)


def fitted(
    setup: Setup,
    target: str,
    added_halves: list[dict[str, Tensor]],
    random_RK: Tensor,
    pool: Pool,
    record: Record,
    seed: int,
) -> dict[str, Any]:
    """The shares of each choice for a target, and its predictions of the random mixtures."""
    network, theta = setup.network, setup.theta
    own = setup.targets[target][: setup.num_fit]
    first, second = added_halves
    added = {name: (first[name] + second[name]) / 2 for name in theta}
    merged = merged_of(theta, added, own, network)

    def fit() -> dict[str, Any]:
        found = merged.fit(seed=seed)
        test = setup.targets[target][setup.num_fit :]
        return {
            "shares": found.weights_K.tolist(),
            "low": found.low_K.tolist(),
            "high": found.high_K.tolist(),
            "strength": found.strength,
            "at theta(w)": float(losses_of(merged.weights(found.weights_K), test, network).mean()),
        }

    def losses_at(weights_RK: Tensor) -> list[float]:
        return [float(merged.losses_at(one).mean()) for one in weights_RK]

    corners_KK = torch.eye(len(setup.sources)).double()
    lone_K = torch.tensor(record(f"lone-{target}", partial(losses_at, corners_KK)))
    predicted = {
        "merged": record(f"predicted-{target}", partial(losses_at, random_RK)),
        "lone": (random_RK @ lone_K.double()).tolist(),
    }
    chosen, predicted["n-grams"] = closed_forms(setup, own, random_RK, pool)
    chosen["lone ranking"] = lone_ranking(lone_K).tolist()
    chosen["best lone"] = corners_KK[lone_K.argmin()].tolist()
    answer = record(f"fit-{target}", fit)
    chosen["merged"] = answer.pop("shares")
    if setup.thorough:
        chosen["merged, network's gradient"] = gradient_shares(merged, own).tolist()
        around_equal = merged.linearized(uniform(len(setup.sources)))
        predicted["merged, quadratic at equal shares"] = (
            around_equal(random_RK).mean(dim=1).tolist()
        )
        answer["halves"] = [
            merged_of(theta, half, own, network).fit(seed=seed, num_resamples=0).weights_K.tolist()
            for half in added_halves
        ]
    return {"shares": chosen, "predicted": predicted, **answer}


def closed_forms(
    setup: Setup, own: Encoded, random_RK: Tensor, pool: Pool
) -> tuple[dict[str, list[float]], list[float]]:
    """Shares that need no learner, by name, and what trigrams predict of the random mixtures."""
    network, num_sources = setup.network, len(setup.sources)
    texts = [(one.tokens_NL, one.wanted_NL) for one in setup.sources.values()]
    wanted_NL, every_N = own.wanted_NL, torch.arange(len(own))
    asked = own.tokens_NL, wanted_NL
    density_XK, bigram_XK = (
        ngram_probabilities(texts, asked, network.target.num_outputs, order) for order in (3, 2)
    )
    hidden_ND = hidden_means(setup.theta, own, network)
    scores = {
        "rds": cosines(pool.hidden_MD, hidden_ND),
        "bm25": bm25(pool.words, words_of(own, network)),
    }
    shares = {
        "n-grams": ngram_shares(density_XK, wanted_NL, every_N),
        "bigrams": ngram_shares(bigram_XK, wanted_NL, every_N),
    } | {name: shares_of_nearest(one, pool.owners, num_sources) for name, one in scores.items()}
    counted_NL = wanted_NL != MASKED
    share_X = (counted_NL / counted_NL.sum(dim=1, keepdim=True) / len(own))[counted_NL]
    predicted_R = -((random_RK @ density_XK.T).log() @ share_X.double())
    return {name: one.tolist() for name, one in shares.items()}, predicted_R.tolist()


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rank correlations by target, and each choice's loss and share of the gap, by seed.

    Intervals of 95% are of the difference to the merged learners' mixture, over test examples.
    """
    for seed in sorted({line["seed"] for line in lines}):
        own = [line for line in lines if line["seed"] == seed]
        fits = {line["target"]: line for line in own if "predicted" in line}
        reals = [line for line in own if "real" in line]
        for target, one in fits.items():
            tests = {
                line["mixture"]: line["real"][target]
                for line in reals
                if line.get("target", target) == target
            }
            by_name = {name: np.array(losses_N) for name, (losses_N, _) in tests.items()}
            tried = [name for name in tests if name.startswith("random")]
            best = min(tried, key=lambda name: by_name[name].mean())
            yield f"\nseed {seed}, target {target}; best of {len(tried)} is {best}"
            for name, predicted in one["predicted"].items():
                found = [float(by_name[name].mean()) for name in tried]
                yield f"  rank correlation, {name}: {rank_correlation(predicted, found):.2f}"
            start = by_name["uniform"].mean()
            whole = start - by_name[best].mean()
            for name, losses_N in by_name.items():
                if name not in {best, *(tests.keys() - tried)}:
                    continue
                closed = (start - losses_N.mean()) / whole
                line = f"  {name:14} loss {losses_N.mean():.3f}, {closed:.0%} of the gap"
                if (right := tests[name][1]) is not None:
                    line += f", {right:.1%} right"
                # Results of the first seeds have means alone.
                if len(losses_N) > 1:
                    low, high = interval(losses_N - by_name["merged"])
                    line += f", over merged {low:+.3f} to {high:+.3f}"
                yield line


def interval(differences_N: np.ndarray) -> tuple[float, float]:
    """Of the mean, by resamples of the examples."""
    draws = np.random.default_rng(0)
    rows_SN = draws.integers(0, len(differences_N), (1000, len(differences_N)))
    low, high = np.quantile(differences_N[rows_SN].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def rank_correlation(predicted: list[float], losses: list[float]) -> float:
    """Spearman's."""
    return float(np.corrcoef(rankdata(predicted), rankdata(losses))[0, 1])
