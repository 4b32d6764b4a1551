"""Comparison: the first stage whose digest differs from the recorded one, as a message."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HINT = (
    "Record a deliberate change with `make golden`, and explain it in the commit message.\n"
    "An unexpected one is a defect."
)


@dataclass(frozen=True)
class Stage:
    """A result of one step of the pipeline.

    kind: of the step, such as "learner".
    digest: of the result; where the product refuses the request, the refusal's class.
    item: which of several, such as "3"; empty where there is one.
    exact: whether every machine computes the same bits.
    """

    kind: str
    digest: str
    item: str = ""
    exact: bool = False

    @property
    def name(self) -> str:
        """Kind and item."""
        return f"{self.kind} {self.item}".rstrip()


def by_name(stages: Sequence[Stage], *, exact: bool) -> dict[str, str]:
    """The digests of the exact stages, or of all others.

    Raises:
        ValueError: two stages have one name.
    """
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two stages are called {twice!r}")
    return {stage.name: stage.digest for stage in stages if stage.exact is exact}


def describe_difference(
    part: str, stages: Sequence[Stage], recorded: Mapping[str, str]
) -> str | None:
    """What a part's stages differ in from the recorded ones; None for nothing.

    Args:
        part: the data set, or another group of stages.
        stages: that were computed, in the pipeline's order.
        recorded: digests by stage name, of the same stages.
    """
    different = [stage for stage in stages if recorded.get(stage.name) != stage.digest]
    names = {stage.name for stage in stages}
    missing = [name for name in recorded if name not in names]
    if not different and not missing:
        return None
    lines = []
    if different:
        first, *others = different
        before = list(itertools.takewhile(lambda stage: stage is not first, stages))
        old, new = recorded.get(first.name, "nothing"), first.digest
        lines = [
            f"{part}: first difference at {first.name}: {old} was recorded, {new} is computed",
            f"  equal before it: {in_words(before, stages)}",
            f"  also different: {in_words(others, stages)}",
        ]
    if missing:
        shown = ", ".join(missing[:3]) + (f", and {len(missing) - 3} more" * (len(missing) > 3))
        lines.append(f"{part}: recorded, but not computed any more: {shown}")
    return "\n".join([*lines, HINT])


def in_words(some: Sequence[Stage], stages: Sequence[Stage]) -> str:
    """Some of the stages, kind by kind: "theta*, learners 0-2, 31 of 96 subsets (first: ...)"."""
    words = []
    for kind, group in itertools.groupby(some, lambda stage: stage.kind):
        items = [stage.item for stage in group]
        total = sum(stage.kind == kind for stage in stages)
        if items == [""]:
            words.append(kind)
        elif all(item.isdigit() for item in items):
            words.append(f"{kind}{'s' * (len(items) > 1)} {_ranges(list(map(int, items)))}")
        elif len(items) == total:
            words.append(f"all {total} {kind}s" if total > 1 else f"{kind} {items[0]}")
        else:
            words.append(f"{len(items)} of {total} {kind}s (first: {items[0]})")
    return ", ".join(words) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers: 0, 1, 2, 5 is "0-2, 5"."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
