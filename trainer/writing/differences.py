"""Differences in words: where two descriptions of the same kind of thing differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Each setting whose values differ, with both: "its recipe.steps is 3, now it is 4".

    Args:
        found: what stands in a file; JSON values by name, nested or not.
        wanted: what is asked for now, likewise. What only one of them has is None in the other.

    Returns:
        Empty where they are equal.
    """
    return "; ".join(_each(found, wanted, within=""))


def _each(found: Mapping[str, Any], wanted: Mapping[str, Any], within: str) -> Iterator[str]:
    for name in dict.fromkeys((*wanted, *found)):
        then, now, label = found.get(name), wanted.get(name), f"{within}{name}"
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            yield from _each(then, now, within=f"{label}.")
        elif then != now:
            yield f"its {label} is {then!r}, now it is {now!r}"
