"""Mixture: how much of each source to train on for a target, in one call.

mixture = lipt.mix({"web": web, "clinic": clinic}, target_data)
subset = mixture.sample(10_000)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lipt.common.computation import computed
from lipt.common.config.run_config import ShardRule, merge, preset_of
from lipt.common.errors import ConfigError, DataError
from lipt.core.mixture.learning import TargetedPool, learn
from lipt.core.mixture.mixture import (
    alone,
    findings_on,
    fit_mixture,
    on_leaks,
)
from lipt.core.stages.diagnosis import duplicates_of
from lipt.data.dataset import Dataset
from lipt.data.targets.kinds import TargetKind
from lipt.mixture_data import MixtureData, open_mixture
from lipt.pretraining import Pretrained
from lipt.trainer.arguments import checked
from lipt.trainer.mixture import Mixture
from lipt.trainer.progress import progress_display


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
            with the column `source`; or "imagefolder:DIR", with a folder for each source; or data
            whose name gives its sources: "csv:pool.csv?label=y&source=site".
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
    opened = open_mixture(
        sources,
        target_data,
        target=target,
        source=source,
        image_size=image_size,
        allow_modules=allow_modules,
    )
    pool = TargetedPool.of(opened.pool, opened.target, opened.num_target)
    preset = preset_of("mixture", of_texts=opened.pool.target.kind is TargetKind.TOKENS)
    settings = merge(merge(preset, {"initialization": {"steps": None}}), dict(run or {}))

    def pretrained(data: Dataset) -> Pretrained:
        return Pretrained(
            data,
            model,
            head=head,
            seed=seed,
            run=settings,
            device=device,
            allow_modules=allow_modules,
            progress=False,
        )

    with progress_display(shown=progress) as show:
        begun = pretrained(opened.pool)
        begun.on_progress = show
        if (rule := begun.config.learners.shards) is not ShardRule.SOURCE:
            raise ConfigError(
                f"learners.shards is {rule}, but the learners of a mixture are by source. Leave it "
                "out."
            )
        targeted = begun.workspace.beside(pool.dataset)
        leaked_N = duplicates_of(targeted, 1, pool.target_ids)
        findings = on_leaks(pool, leaked_N, dropped=drop_duplicates)
        if drop_duplicates and bool(leaked_N[pool.pool_ids].any()):
            begun = pretrained(_without(opened.pool, leaked_N))
            begun.on_progress = show
            pool = TargetedPool.of(begun.data, opened.target, opened.num_target)
            targeted = begun.workspace.beside(pool.dataset)
        config = begun.config
        findings += findings_on(pool, config)
        theta = None
        if len(pool.names) == 1:
            result = alone(pool, config, findings)
        else:
            learned = learn(begun.workspace, targeted, pool, config, begun.begins_with)
            result, shares_K = fit_mixture(targeted, pool, config, learned, findings, check=check)
            theta = begun.by_own_names(learned.merged.model, learned.merged.weights(shares_K))
    manifest = {**result.manifest, "data": _facts(opened, target)}
    result = replace(result, fingerprint=opened.fingerprint, manifest=manifest)
    return Mixture(**vars(result), theta=theta, data=opened.data)


def _facts(opened: MixtureData, target: str | None) -> dict[str, Any]:
    """The column to predict, and the sizes of sources that were given one by one."""
    facts: dict[str, Any] = {} if target is None else {"target": target}
    if opened.data is not None:
        sizes = {name: len(ids) for name, ids in opened.data.source_ids.items()}
        facts["sources"] = sizes
    return facts


def _without(pool: Dataset, leaked_N: torch.Tensor) -> Dataset:
    """The pool without its leaked examples; DataError if a source has no other."""
    for name, ids in pool.source_ids.items():
        if bool(leaked_N[ids].all()):
            raise DataError(f"all examples of {name} duplicate the target. Leave it out.")
    leaked = pool.id_mapping.ids(torch.nonzero(leaked_N[: len(pool)]).flatten())
    excluded = tuple(sorted({*pool.quarantined, *leaked.tolist()}))
    return replace(pool, quarantined=excluded, excludes=bool(excluded))
