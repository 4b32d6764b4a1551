"""Comparison: the fitted mixture beside baselines, by held-out losses of merged learners.

What was chosen by the target's examples is scored on those that did not choose it, fold by fold;
but the greedy soup's shares, which take many passes, are chosen by all. Baselines need no merged
learners, and return K shares of sum 1, float64; the closed form is in `densities`.

Shapes: N target examples, M examples of a source, K sources, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator
from lipt.core.mixture.densities import Featured, expectation_maximization, log_densities
from lipt.core.mixture.learning import Learned, TargetedPool
from lipt.core.mixture.ngrams import Texts, ngram_probabilities, ngram_shares
from lipt.core.pretraining.simplex import Fitted, uniform
from lipt.core.proxies.untrained import column_values
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import columns_in
from lipt.data.inputs.specs import ImageSpec
from lipt.data.sources.rows import ColumnRows
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import comes_trained

MERGED, UNIFORM, SIZE, CLOSED_FORM = "merged", "uniform", "size", "closed form"
# Examples of a source for features; more change little.
_MOST_FEATURED = 5_000
# By a model of a folder, of which each takes a pass of a large network.
_FEW_FEATURED = 256
# Side of the images of the closed form.
_PIXELS = 16
# The exponent of sizes in temperature sampling: small sources get more than their part.
TEMPERED = 0.7
_MOST_COSINES = 2**24


@dataclass(frozen=True)
class Compared:
    """A mixture: its shares, each held-out target example's loss, and the score."""

    shares_K: Tensor
    losses_N: Tensor
    score: float


def compare(
    pool: TargetedPool, config: RunConfig, learned: Learned, fitted: Fitted
) -> Mapping[str, Compared]:
    """The fitted mixture and every baseline, by name.

    Those that look at examples are left out where workers hold some.
    """
    source_ids, target_ids = list(pool.source_ids.values()), pool.target_ids
    merged, sizes_K = learned.merged, torch.tensor(list(pool.sizes.values()))
    corners_KK = torch.eye(len(source_ids), dtype=torch.float64)
    lone_NK = torch.stack([merged.losses_at(corner_K) for corner_K in corners_KK], dim=1)
    greedy_K = greedy_shares(
        lone_NK.mean(dim=0), lambda shares_K: float(merged.losses_at(shares_K).mean())
    )
    # From positions in the target to shares chosen by these examples.
    chosen: dict[str, Callable[[Tensor], Tensor]] = {
        UNIFORM: lambda _: uniform(len(source_ids)),
        SIZE: lambda _: by_size(sizes_K),
        f"size^{TEMPERED}": lambda _: by_size(sizes_K, TEMPERED),
        "lone ranking": lambda some_N: lone_ranking(lone_NK[some_N].mean(dim=0)),
        "greedy soup": lambda _: greedy_K,
    }
    if all(map(len, source_ids)):
        most = _FEW_FEATURED if comes_trained(config.model) else _MOST_FEATURED
        some = _some(source_ids, config.seed, most)
        features_ND = merged.features(merged.batches)
        features_of_sources = [merged.features(learned.batches_of(ids)) for ids in some]
        chosen[CLOSED_FORM] = _closed_form(pool.dataset, config.seed, source_ids, target_ids)
        chosen["nearest source"] = lambda some_N: nearest_sources(
            features_of_sources, features_ND[some_N]
        )
    whole_N, fold_N = torch.arange(len(target_ids)), fitted.fold_N
    rest = [torch.nonzero(fold_N != fold).flatten() for fold in range(len(fitted.held_out_FK))]
    mixtures = {MERGED: (fitted.weights_K, list(fitted.held_out_FK))}
    for name, shares_of in chosen.items():
        mixtures[name] = shares_of(whole_N), [shares_of(some_N) for some_N in rest]
    return {
        name: Compared(shares_K, *merged.scored(by_fold, fold_N))
        for name, (shares_K, by_fold) in mixtures.items()
    }


def closed_form(
    dataset: Dataset, seed: int, source_ids: Sequence[Tensor], target_ids: Tensor
) -> Tensor:
    """Log densities of the target's examples under each source, by pixels or columns; N x K."""
    featured = _featured(dataset, seed)
    sources = [featured(ids) for ids in _some(source_ids, seed)]
    return log_densities(sources, featured(target_ids), dataset.target)


def _closed_form(
    dataset: Dataset, seed: int, source_ids: Sequence[Tensor], target_ids: Tensor
) -> Callable[[Tensor], Tensor]:
    """From positions in the target to shares."""
    if dataset.target.kind is not TargetKind.TOKENS:
        log_densities_NK = closed_form(dataset, seed, source_ids, target_ids)
        return lambda some_N: expectation_maximization(log_densities_NK[some_N])

    def texts(ids: Tensor) -> Texts:
        (tokens_NL,) = columns_in(dataset.examples(ids)).values()
        return tokens_NL, dataset.targets_N[ids]

    sources, target = [texts(ids) for ids in _some(source_ids, seed)], texts(target_ids)
    probabilities_XK = ngram_probabilities(sources, target, dataset.target.num_outputs)
    return lambda some_N: ngram_shares(probabilities_XK, target[1], some_N)


def _some(source_ids: Sequence[Tensor], seed: int, most: int = _MOST_FEATURED) -> list[Tensor]:
    draws = derive_generator(seed, "mixture features")
    return [ids[torch.randperm(len(ids), generator=draws)[:most]] for ids in source_ids]


def _featured(dataset: Dataset, seed: int) -> Callable[[Tensor], Featured]:
    """From ids to small images' pixels, or the values of columns, with targets."""
    rows = dataset.rows
    of_columns = (
        column_values(rows.columns, rows.tensors, seed=seed)
        if isinstance(rows, ColumnRows)
        else None
    )

    def features(ids: Tensor) -> Tensor:
        stored = dataset.examples(ids)
        if isinstance(stored, Tensor) and isinstance(dataset.inputs, ImageSpec):
            side = min(_PIXELS, *stored.shape[2:])
            return functional.adaptive_avg_pool2d(stored.float(), side).flatten(start_dim=1)
        assert of_columns is not None  # noqa: S101 - other examples are columns
        return of_columns({"": stored} if isinstance(stored, Tensor) else stored)

    return lambda ids: Featured(features(ids), dataset.targets_N[ids])


def by_size(sizes_K: Tensor, exponent: float = 1.0) -> Tensor:
    """Shares in proportion to a power of the sources' sizes."""
    powers_K = sizes_K.double() ** exponent
    return powers_K / powers_K.sum()


def lone_ranking(losses_K: Tensor) -> Tensor:
    """The softmax of lone learners' negative losses on the target."""
    return (-losses_K.double()).softmax(dim=0)


def nearest_sources(sources: Sequence[Tensor], features_ND: Tensor) -> Tensor:
    """The share of target examples whose nearest example is in each source.

    By the cosine of features, centred at their mean over all sources; `sources` are M x D each.
    """
    pool_XD = torch.cat(list(sources))
    mean_D = pool_XD.mean(dim=0)
    owners_X = torch.arange(len(sources)).repeat_interleave(torch.tensor([*map(len, sources)]))
    pool_DX = functional.normalize(pool_XD - mean_D, dim=1).T
    nearest = [
        (functional.normalize(part_BD - mean_D, dim=1) @ pool_DX).argmax(dim=1)
        for part_BD in torch.split(features_ND, max(1, _MOST_COSINES // len(pool_XD)))
    ]
    counts_K = owners_X[torch.cat(nearest)].bincount(minlength=len(sources))
    return counts_K.double() / len(features_ND)


def greedy_shares(losses_K: Tensor, loss_of: Callable[[Tensor], float]) -> Tensor:
    """The greedy soup's own shares: learners enter an equal mean unless they raise its loss.

    The best learner alone is first, then the others in order of their losses on the target.
    """
    counts_K, least = torch.zeros(len(losses_K), dtype=torch.float64), float("inf")
    for source in losses_K.argsort(stable=True).tolist():
        tried_K = counts_K.clone()
        tried_K[source] = 1
        if (loss := loss_of(tried_K / tried_K.sum())) <= least:
            counts_K, least = tried_K, loss
    return counts_K / counts_K.sum()
