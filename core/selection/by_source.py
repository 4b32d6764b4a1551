"""Selection by source: each source's share of the budget, and a strategy's choice within it.

A mixture's file is JSON with `fingerprint` (of the data), `weights` (each source's share), and
`rows` (each source's rows as ranges [start, stop)); `Mixture.save` writes it.

Shapes: N examples, n of one source, K sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.common.errors import InvalidRequestError
from lipt.common.nested import parse_json
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection, joined
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import Signals
from lipt.data.groups import proportional_quotas
from lipt.data.sources.rows import MAX_SOURCES

# A range of an interleaved table takes some 16 characters.
MAX_MIXTURE_BYTES = 16 * 2**20

Name = Annotated[str, Field(max_length=1000)]
Start = Annotated[int, Field(ge=0)]


class SourceShares(BaseModel):
    """The shares of a mixture's file, and the rows of each source."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    fingerprint: str
    weights: Annotated[
        dict[Name, Annotated[float, Field(ge=0, le=1, strict=False)]],
        Field(min_length=1, max_length=MAX_SOURCES),
    ]
    rows: dict[Name, list[tuple[Start, Start]]]

    @model_validator(mode="after")
    def _names_rows_once(self) -> Self:
        total = sum(self.weights.values())
        if self.weights.keys() != self.rows.keys() or abs(total - 1) > 1e-6:
            raise ValueError(
                f"its shares add up to {total:g}, or are of other sources than its rows"
            )
        ranges = sorted(chain.from_iterable(self.rows.values()))
        for (start, stop), (following, _) in pairwise([*ranges, (math.inf, math.inf)]):
            if not start < stop <= following:
                raise ValueError(f"its rows {start} to {stop} are none, or are of two sources")
        return self

    @classmethod
    def read(cls, source: bytes | Path) -> Self:
        """The shares of a file; InvalidRequestError for other content."""
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        if size > MAX_MIXTURE_BYTES:
            raise _refused(f"it has {size} bytes, and at most {MAX_MIXTURE_BYTES} are read")
        content = source.read_bytes() if isinstance(source, Path) else source
        try:
            # JSON has lists for tuples.
            return cls.model_validate(parse_json(content), strict=False)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise _refused(f"{place:.80}: {said}" if place else said) from None
        except ValueError as error:
            raise _refused(str(error)) from None

    def source_of(self, num_ids: int) -> Tensor:
        """The place of each id's source among the names, int64, -1 for an id of none."""
        source_N = torch.full((num_ids,), -1, dtype=torch.int64)
        for place, (name, ranges) in enumerate(self.rows.items()):
            for start, stop in ranges:
                if stop > num_ids:
                    raise _refused(f"{name:.80} has the rows {start} to {stop} of {num_ids}")
                source_N[start:stop] = place
        return source_N


@dataclass(frozen=True)
class Division:
    """Each source's share by name, and each example's source, its place among the names or -1."""

    shares: Mapping[str, float]
    source_N: Tensor

    def counts(self, indices_K: Tensor) -> dict[str, int]:
        """How many of the chosen examples are of each source."""
        counts = self.source_N[indices_K].bincount(minlength=len(self.shares))
        return dict(zip(self.shares, counts.tolist(), strict=True))


def select_by_source(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    division: Division,
    *,
    balanced: bool,
    seed: int,
    options: Mapping[str, Any],
) -> Selection:
    """Choose within each source's share of the budget.

    A source that is smaller than its part is taken whole, with larger loss weights.
    """
    nothing = Selection(torch.empty(0, dtype=torch.int64), torch.empty(0))
    parts, is_random = [nothing], strategy.is_random
    counts = proportional_quotas(list(division.shares.values()), budget)
    for place, (name, count) in enumerate(zip(division.shares, counts, strict=True)):
        rows = torch.nonzero(division.source_N == place).flatten()
        quota = min(count, len(rows))
        if not quota:
            why = f"source {name} has no example." if count else ""
            parts.append(replace(nothing, stopped_early=why))
            continue
        part = select(
            strategy,
            signals.take(rows.to(signals.labels_N.device)),
            quota,
            balanced=balanced,
            seed=derive_seed(seed, "selection-source", place),
            options=options,
        )
        is_random = is_random or bool(part.is_random)
        early = [f"source {name} has {quota} of its {count} examples."] if quota < count else []
        early += [f"source {name}: {part.stopped_early}"] if part.stopped_early else []
        # `select` returns rows of the CPU.
        weights_K = part.weights_K.cpu() * (count / quota)
        parts.append(Selection(rows[part.indices_K], weights_K, stopped_early=" ".join(early)))
    return replace(joined(parts), is_random=is_random)


def _refused(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the mixture's file cannot be used: {why}. Give a file of lipt mix, or of Mixture.save."
    )
