"""Mixture: how much of each source to train on for a target, as users hold it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import torch
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.subsets import subset_digest
from lipt.core.mixture.result import MixtureResult
from lipt.core.selection.by_source import SourceShares
from lipt.data.groups import proportional_quotas
from lipt.models.adapters import save_adapter
from lipt.trainer.arguments import checked
from lipt.trainer.files import codec_of, write_atomically
from lipt.trainer.formatting import share_bar, table_lines, to_jsonable
from lipt.trainer.subsets.subset import Subset

# Shares are written with four digits.
_PARTS = 10_000


@dataclass(frozen=True)
class Mixture(MixtureResult):
    """How much of each source to train on for a target.

    Attributes, besides those of `MixtureResult`:
        theta: the merged learners' weights; None for one source, and where it was loaded.
        data: one source after another; None where a table was given or it was loaded.
    """

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

        A source that is smaller than its part is taken whole, with larger loss weights; the
        findings name it, and one whose examples a worker holds, which has none here.
        """
        none = torch.empty(0, dtype=torch.int64)
        sources = [
            torch.cat([none, *(torch.arange(*run) for run in runs)]) for runs in self.rows.values()
        ]
        total = sum(map(len, sources))
        if budget > total:
            raise SubsetError(
                f"budget {budget} is more than the {total} examples of all sources. Give less."
            )
        rows, weights, words = list[Tensor](), list[Tensor](), list[str]()
        counts = proportional_quotas(self.probabilities, budget)
        for name, own, count in zip(self.rows, sources, counts, strict=True):
            draws = derive_generator(seed, f"mixture sample {name}")
            rows.append(own[torch.randperm(len(own), generator=draws)[:count]])
            weights.append(torch.full((len(rows[-1]),), count / max(1, len(rows[-1]))))
            if len(own) < count:
                words.append(f"source {name} has {len(own)} of its {count} examples here")
        chosen, order = torch.cat(rows).sort()
        columns = chosen.numpy(), torch.cat(weights)[order].numpy()
        manifest = {
            "mixture": to_jsonable(self.manifest),
            "shares": dict(self.weights),
            "data": to_jsonable(self.manifest.get("data", {})),
            "findings": {"words": words},
        }
        return Subset(*columns, self.fingerprint, subset_digest(*columns), "mixture", manifest)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write as JSON, without theta and the data; as .yaml, for LLaMA-Factory.

        A .yaml is an export: shares have four digits, and sources of none are left out.
        SubsetError for another suffix.
        """
        write_atomically(Path(path), mixture_writer(Path(path))(self))
        return Path(path)

    @checked
    def save_adapter(self, folder: str | Path) -> Path:
        """Write theta's adapter, as peft's `PeftModel.from_pretrained` loads it.

        ConfigError without adapters (`adapters.rank`), or for a model that is neither live nor in a
        folder.
        """
        if self.theta is None:
            raise ConfigError(
                "the mixture has no theta: it was loaded, or has one source. Save the adapter of "
                "what lipt.mix returns."
            )
        return save_adapter(Path(folder), self.theta, RunConfig(**self.manifest["config"]))

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """Read the output of `save`; SubsetError for another file."""
        return cls.from_json(Path(path).read_bytes(), str(path))

    @classmethod
    def from_json(cls, content: bytes, name: str) -> Self:
        """Read a file's content; SubsetError for other content, which it calls `name`."""
        try:
            SourceShares.model_validate_json(content, strict=False)
            return TypeAdapter(cls).validate_json(content)
        except ValueError as error:
            raise SubsetError(
                f"{name} does not hold a mixture of this version of lipt. Write one with "
                "Mixture.save."
            ) from error

    def __str__(self) -> str:
        shares = [
            (name, f"{share:.3f}", "{:.3f} to {:.3f}".format(*self.intervals[name]))
            for name, share in self.weights.items()
        ]
        results = [
            (
                *(name, f"{outcome.loss:.3f}", f"{outcome.accuracy:.3f}"),
                f"{fmean(outcome.real_accuracies):.3f}" if outcome.real_accuracies else "",
            )
            for name, outcome in self.outcomes.items()
        ]
        trained = any(outcome.real_accuracies for outcome in self.outcomes.values())
        header = ("mixture", "loss", "accuracy", "accuracy after training" if trained else "")
        lines = [*table_lines(("source", "share", "95% interval"), shares), ""]
        lines += [*table_lines(header, results), ""] if results else []
        unchecked = (
            [] if trained else ["Nothing was trained to check this: check=True does, or --check."]
        )
        return "\n".join([*lines, self.verdict, *self.findings, *unchecked])

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{share:.1%}</td>"
            f"<td style='width:200px'>{share_bar(share, self.intervals[name])}</td>"
            "<td>{:.0%} to {:.0%}</td></tr>".format(*self.intervals[name])
            for name, share in self.weights.items()
        )
        words = "".join(f"<p>{escape(text)}</p>" for text in (self.verdict, *self.findings))
        return f"<table><caption>Mixture</caption>{bars}</table>{words}"


def mixture_writer(path: Path) -> Callable[[Mixture], bytes]:
    """Return the function that encodes a file of this name; SubsetError for another suffix."""
    writers = {".json": Mixture.to_json, ".yaml": _llama_factory, ".yml": _llama_factory}
    return codec_of(path, writers, "a mixture is written")


def _llama_factory(mixture: Mixture) -> bytes:
    """The settings of LLaMA-Factory that train on the shares; a JSON text is YAML as well."""
    if unfit := [name for name in mixture.weights if "," in name]:
        raise SubsetError(
            f"the source {unfit[0]!r} has a comma, which LLaMA-Factory takes for two data sets. "
            "Rename it, or save as .json."
        )
    # A source that is never drawn would never be exhausted.
    parts = dict(
        zip(mixture.weights, proportional_quotas(mixture.probabilities, _PARTS), strict=True)
    )
    drawn = {name: f"{number / _PARTS:.4f}" for name, number in parts.items() if number}
    lines = {
        "dataset": json.dumps(",".join(drawn), ensure_ascii=False),
        "mix_strategy": "interleave_under",
        "interleave_probs": json.dumps(",".join(drawn.values())),
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items()).encode()
