"""Suggestions: the settings that somebody may have meant who named one that there is not."""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import BaseModel

from lipt.common.config.knobs import sections

# What people say for short, and write elsewhere.
_SHORT = {
    "aug": "augmentation",
    "bs": "batch_size",
    "epoch": "epochs",
    "lr": "learning_rate",
    "mom": "momentum",
    "num_epochs": "epochs",
    "random_seed": "seed",
    "wd": "weight_decay",
}
_MOST = 3
# difflib's measure, from 0 to 1, from which on two names are alike.
_ALIKE = 0.75


def did_you_mean(name: str, model: type[BaseModel]) -> str:
    """A question that names the closest settings; empty where none is close.

    Args:
        name: what was given, dotted.
        model: has the settings that there are.
    """
    found = closest(name, setting_names(model))
    return f"did you mean {' or '.join(found)}?" if found else ""


def setting_names(model: type[BaseModel]) -> tuple[str, ...]:
    """The full names of a model's settings, dotted."""
    return tuple(
        f"{section.name}.{knob.name}" if section.name else knob.name
        for section in sections(model)
        for knob in section.knobs
    )


def closest(name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The known names that are meant most likely, at most three; the likeliest first.

    Those that end as the name does, or as what it is short for, then those that are spelt alike.
    Where several sections have the setting, that of the learners is what is set most.
    """
    leaf = _leaf(name).lower()
    meant = _SHORT.get(leaf, leaf)
    same = sorted(
        (item for item in known if _leaf(item) == meant), key=lambda item: "learners." not in item
    )
    alike = get_close_matches(name, known, n=_MOST, cutoff=_ALIKE)
    leaves = get_close_matches(meant, {_leaf(item): None for item in known}, cutoff=_ALIKE)
    alike += [item for item in known if _leaf(item) in leaves]
    return tuple(dict.fromkeys([*same, *alike]))[:_MOST]


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
