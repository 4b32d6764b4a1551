"""Mixture: how much of each source to train on for a target, in one call.

mixture = lipt.mix({"web": web, "clinic": clinic}, target_data)
subset = mixture.sample(10_000)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from html import escape
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, Literal, Self

import torch
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from lipt.common.computation import computed
from lipt.common.config.run_config import merge
from lipt.common.determinism import derive_generator
from lipt.common.errors import DataError, SubsetError
from lipt.common.process.devices import versions_on
from lipt.common.subsets import subset_digest
from lipt.common.tensor_files import copy_to_cpu
from lipt.common.text import listed
from lipt.core.mixture.check import CHECK_STEPS, MixtureTraining
from lipt.core.mixture.comparison import MERGED, SIZE, UNIFORM, compare
from lipt.core.mixture.learning import MIXTURE_DEFAULTS, NUM_HALVES, Learned, learn
from lipt.core.mixture.verdict import judge
from lipt.core.selection.selection import proportional_quotas
from lipt.core.stages.diagnosis import matches_of
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset
from lipt.data.targets.kinds import TargetKind
from lipt.mixture_data import Joined, join
from lipt.pretraining import Pretrained
from lipt.trainer.arguments import checked
from lipt.trainer.files import write_atomically
from lipt.trainer.formatting import table_lines, to_jsonable
from lipt.trainer.progress import progress_display
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import ProgressView

# A larger target is sampled. Fewer examples say little. A smaller share is hardly one.
_MOST_TARGET, _FEW, _HARDLY = 10_000, 30, 0.05
_NUM_CHECKS = 3


@dataclass(frozen=True)
class MixtureOutcome:
    """One mixture: shares by source, and merged learners' loss and accuracy on held-out target.

    real_accuracies: of short trainings on it, one per seed; empty unless checked.
    """

    weights: Mapping[str, float]
    loss: float
    accuracy: float
    real_accuracies: tuple[float, ...] = ()


@dataclass(frozen=True)
class Mixture:
    """How much of each source to train on for a target.

    Attributes:
        weights: each source's share; their sum is 1.
        intervals: each share's 95% interval over resampled target examples.
        outcomes: the mixture ("merged"), equal shares ("uniform"), sizes ("size") and baselines.
        verdict: whether the mixture is measurably better than equal shares.
        findings: sentences on the sources and the target.
        manifest: settings, seed, versions, readiness of theta*, seconds.
        fingerprint: of the data that `sample` names rows of.
        rows: each source's rows there, as ranges [start, stop).
        theta: the merged learners' weights; None for one source, and where it was loaded.
        data: one source after another, then the target; None where a table was given or it was
            loaded.
    """

    weights: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    outcomes: Mapping[str, MixtureOutcome]
    verdict: str
    findings: tuple[str, ...]
    manifest: Mapping[str, Any]
    fingerprint: str
    rows: Mapping[str, tuple[tuple[int, int], ...]] = field(repr=False)
    format: Literal["lipt-mixture-1"] = field(default="lipt-mixture-1", repr=False)
    theta: Any = field(default=None, repr=False, compare=False)
    data: Any = field(default=None, repr=False, compare=False)

    @property
    def loss(self) -> dict[str, float]:
        """Held-out target loss of merged learners, by mixture."""
        return {name: outcome.loss for name, outcome in self.outcomes.items()}

    @property
    def accuracy(self) -> dict[str, float]:
        """Held-out target accuracy (F1 of labels, R² of numbers), by mixture."""
        return {name: outcome.accuracy for name, outcome in self.outcomes.items()}

    @property
    def probabilities(self) -> list[float]:
        """The shares in the order of the sources, as `datasets.interleave_datasets` takes them."""
        return list(self.weights.values())

    @checked
    def sample(self, budget: int, *, seed: int = 0) -> Subset:
        """Draw examples by the shares: a subset of the table that was given, or of `data`.

        A source that is smaller than its part is taken whole, with larger loss weights.
        """
        sources = [torch.cat([torch.arange(*run) for run in runs]) for runs in self.rows.values()]
        total = sum(map(len, sources))
        if budget > total:
            raise SubsetError(
                f"budget {budget} is more than the {total} examples of all sources. Give less."
            )
        rows, weights = list[Tensor](), list[Tensor]()
        counts = proportional_quotas(self.probabilities, budget)
        for name, own, count in zip(self.rows, sources, counts, strict=True):
            draws = derive_generator(seed, f"mixture sample {name}")
            rows.append(own[torch.randperm(len(own), generator=draws)[:count]])
            weights.append(torch.full((len(rows[-1]),), count / max(1, len(rows[-1]))))
        chosen, order = torch.cat(rows).sort()
        columns = chosen.numpy(), torch.cat(weights)[order].numpy()
        manifest = {"mixture": to_jsonable(self.manifest), "shares": dict(self.weights)}
        return Subset(*columns, self.fingerprint, subset_digest(*columns), "mixture", manifest)

    def to_json(self) -> bytes:
        """Return the content of a file, without theta and the data."""
        return TypeAdapter(Mixture).dump_json(self, exclude={"theta", "data"})

    @checked
    def save(self, path: str | Path) -> Path:
        """Write as JSON, without theta and the data."""
        write_atomically(Path(path), self.to_json())
        return Path(path)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """Read the output of `save`; SubsetError for another file."""
        try:
            return TypeAdapter(cls).validate_json(Path(path).read_bytes())
        except ValueError as error:
            raise SubsetError(
                f"{path} does not hold a mixture of this version of lipt. Write one with "
                "Mixture.save."
            ) from error

    def __str__(self) -> str:
        shares = [
            (name, f"{share:.3f}", "{:.3f} to {:.3f}".format(*self.intervals[name]))
            for name, share in self.weights.items()
        ]
        results = [
            (
                *(name, f"{one.loss:.3f}", f"{one.accuracy:.3f}"),
                f"{fmean(one.real_accuracies):.3f}" if one.real_accuracies else "",
            )
            for name, one in self.outcomes.items()
        ]
        trained = any(one.real_accuracies for one in self.outcomes.values())
        header = ("mixture", "loss", "accuracy", "accuracy after training" if trained else "")
        lines = [*table_lines(("source", "share", "95% interval"), shares), ""]
        lines += [*table_lines(header, results), ""] if results else []
        return "\n".join([*lines, self.verdict, *self.findings])

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{share:.1%}</td><td>"
            f"<div style='background:#4477aa;height:1em;width:{200 * share:.0f}px'></div></td>"
            "<td>{:.1%} to {:.1%}</td></tr>".format(*self.intervals[name])
            for name, share in self.weights.items()
        )
        words = "".join(f"<p>{escape(text)}</p>" for text in (self.verdict, *self.findings))
        return f"<table><caption>Mixture</caption>{bars}</table>{words}"


@checked
@computed
def mix(
    sources: Any,
    target_data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    *,
    target: str | None = None,
    source: str | None = None,
    head: str | None = None,
    seed: int = 0,
    run: Mapping[str, Any] | None = None,
    check: bool = False,
    drop_duplicates: bool = False,
    image_size: int | None = None,
    device: str = "auto",
    allow_modules: Sequence[str] = (),
    progress: bool | None = None,
) -> Mixture:
    """Find how much of each source to train on for a target.

    Two short learners of each source start from shared weights. The shares with which they merge
    best on the target are the mixture. No mixture is trained unless `check` is set.

    Arguments of `pretrain`, and:
        sources: a mapping from each source's name to its data, as in `open_dataset`; or one table
            with the column `source`; or "imagefolder:DIR", with a folder for each source.
        target_data: labelled examples of what you care about, from 30 on, in the sources' form.
        source: the column that names each row's source; for image folders any name.
        run: settings of the learners. `initialization.steps` sets the shared steps, which are
            otherwise doubled until a test finds them enough.
        check: train on the mixture, on equal shares and on sizes, with three seeds each.
        drop_duplicates: leave out examples of sources that duplicate the target's.

    Raises:
        ConfigError: the sources have no names, or a setting does not exist.
        DataError: the parts do not fit each other.
        DivergedError: a learner's loss is no longer finite.
    """
    began = monotonic()
    joined = join(sources, target_data, target=target, source=source, image_size=image_size)
    names = tuple(joined.ids)
    learners = {"learners": {"num_learners": NUM_HALVES * len(names), "min_learners": 1}}
    opened = Pretrained(
        joined.dataset,
        model,
        head=head,
        seed=seed,
        run=merge(merge(MIXTURE_DEFAULTS, learners), dict(run or {})),
        device=device,
        allow_modules=allow_modules,
        progress=False,
    )
    workspace, config = opened.workspace, opened.config
    with progress_display(wanted=progress) as show:
        opened.on_progress = show
        shard = config.learners.num_minibatches * config.learners.batch_size
        joined, findings = _inspected(workspace, joined, shard=shard, drop=drop_duplicates)
        mixture = Mixture(
            dict.fromkeys(names, 1.0),
            dict.fromkeys(names, (1.0, 1.0)),
            {},
            str(judge(torch.zeros(1), torch.zeros(1), torch.ones(1), names)),
            tuple(findings),
            {
                "seed": seed,
                "config": config.model_dump(mode="json"),
                "sources": {name: len(ids) for name, ids in joined.ids.items()},
                "target_examples": len(joined.target_ids),
                "fingerprint_with_target": joined.dataset.fingerprint,
                "versions": versions_on(workspace.device),
            },
            joined.given.fingerprint,
            {name: _runs(rows) for name, rows in joined.rows.items()},
            data=joined.dataset if joined.given is joined.dataset else None,
        )
        if len(names) == 1:
            return mixture
        own = workspace.new_model(config).state_dict() if isinstance(model, nn.Module) else None
        given = None if own is None else copy_to_cpu(own)
        ids = list(joined.ids.values())
        learned = learn(workspace, config, ids, joined.target_ids, given)
        show(ProgressView("fitting the mixture", 0, 0))
        fitted = learned.merged.fit(seed=seed)
        compared = compare(joined.dataset, config, ids, joined.target_ids, learned, fitted)
        real = dict[str, tuple[float, ...]]()
        if check:
            show(ProgressView("training on mixtures", 0, 0))
            training = MixtureTraining(
                workspace, config, learned.inputs, learned.initial, ids, CHECK_STEPS
            )
            shares = {name: compared[name].shares_K for name in (MERGED, UNIFORM, SIZE)}
            real = training.accuracies(shares, joined.target_ids, range(_NUM_CHECKS))
    findings += _on_learners(names, learned, fitted.weights_K)
    findings += [] if check else ["Nothing was trained to check this: check=True does."]
    gains_N = compared[UNIFORM].losses_N - compared[MERGED].losses_N
    bounds = zip(names, fitted.low_K.tolist(), fitted.high_K.tolist(), strict=True)
    return replace(
        mixture,
        weights=_named(names, fitted.weights_K),
        intervals={name: (low, high) for name, low, high in bounds},
        outcomes={
            name: MixtureOutcome(
                _named(names, one.shares_K),
                one.losses_N.mean().item(),
                one.score,
                real.get(name, ()),
            )
            for name, one in compared.items()
        },
        verdict=str(judge(gains_N, learned.crossed_N, fitted.weights_K, names)),
        findings=tuple(findings),
        manifest={
            **mixture.manifest,
            "readiness": [asdict(test) for test in learned.readiness],
            "strength": fitted.strength,
            "seconds": monotonic() - began,
        },
        theta=learned.merged.weights(fitted.weights_K),
    )


def _named(names: Sequence[str], shares_K: Tensor) -> dict[str, float]:
    return dict(zip(names, shares_K.tolist(), strict=True))


def _inspected(
    workspace: InMemory, joined: Joined, *, shard: int, drop: bool
) -> tuple[Joined, list[str]]:
    """The data without dropped duplicates and most of a large target, and findings on it."""
    target_ids, num_target = joined.target_ids, len(joined.target_ids)
    duplicate_group_N = matches_of(workspace, 1).duplicate_group_N
    leaked_N = torch.isin(duplicate_group_N, duplicate_group_N[target_ids])
    leaks = {name: int(leaked_N[own].sum()) for name, own in joined.ids.items()}
    shown = [f"{count} of {name}" for name, count in leaks.items() if count]
    findings = list[str]()
    if shown:
        action = "left out" if drop else "kept: drop_duplicates=True leaves them out"
        findings.append(f"Examples that duplicate the target, {listed(shown, 5)}, are {action}.")
    if drop:
        kept = {name: ~leaked_N[own] for name, own in joined.ids.items()}
        ids = {name: own[kept[name]] for name, own in joined.ids.items()}
        rows = {name: own[kept[name]] for name, own in joined.rows.items()}
        joined = replace(joined, ids=ids, rows=rows)
    for name, own in joined.ids.items():
        if not len(own):
            raise DataError(f"all examples of {name} duplicate the target. Leave it out.")
    small = [f"{name} ({len(own)})" for name, own in joined.ids.items() if len(own) < shard]
    if small:
        findings.append(
            f"Sources with fewer examples than the {shard} of a learner are drawn from again: "
            f"{listed(small, 5)}."
        )
    if num_target < _FEW:
        findings.append(f"The target has only {num_target} examples, so its intervals are wide.")
    if num_target > _MOST_TARGET:
        drawn = torch.randperm(num_target, generator=derive_generator(0, "mixture target"))
        joined = replace(joined, target_ids=target_ids[drawn[:_MOST_TARGET]])
        findings.append(f"{_MOST_TARGET:,} of the target's {num_target:,} examples are used.")
    return joined, [*findings, *_on_classes(workspace.dataset, joined)]


def _on_classes(dataset: Dataset, joined: Joined) -> list[str]:
    if dataset.target.kind is not TargetKind.CLASS:
        return []
    labels_N, names = dataset.labels_N, dataset.class_names
    wanted, findings = set(labels_N[joined.target_ids].tolist()), list[str]()
    if len(wanted) == 1:
        (label,) = wanted
        findings.append(f"All of the target's examples are of the class {names[label]}.")
    for source, own in joined.ids.items():
        if lacks := sorted(wanted - set(labels_N[own].tolist())):
            shown = listed([names[label] for label in lacks], 5)
            findings.append(f"{source} has no example of {len(lacks)} of its classes: {shown}.")
    return findings


def _on_learners(names: Sequence[str], learned: Learned, shares_K: Tensor) -> list[str]:
    merged, last = learned.merged, learned.readiness[-1]
    before = merged.initial_losses().mean()
    worse = [
        name
        for name, share, corner_K in zip(names, shares_K, torch.eye(len(names)), strict=True)
        if share < _HARDLY and merged.losses_at(corner_K).mean() > before
    ]
    findings = list[str]()
    if worse:
        findings.append(
            f"Learners of {listed(worse, 5)} make the target worse, so they get hardly a share: "
            "their inputs differ from the target's, or their labels are wrong."
        )
    if not last.is_ready:
        findings.append(f"The shares may be wrong: {last}. Give a trained model, or more data.")
    return findings


def _runs(rows: Tensor) -> tuple[tuple[int, int], ...]:
    breaks = torch.nonzero(rows.diff() != 1).flatten() + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in rows.tensor_split(breaks))
