"""Freezing: the layers of a model that stay as they are while the others are trained.

A layer keeps its statistics, such as batch norm's, where all parameters of its own are frozen:
it is in evaluation mode then. What is frozen is told by names in the model's state dict, so that
who has no more than a file of weights can leave it out as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from lipt.common.errors import ConfigError
from lipt.common.models.head import find_head

# In place of a pattern: all parameters but those of the last layer.
ALL_BUT_HEAD = "all-but-head"
# An error names this many parameters and counts the rest.
_MAX_NAMED = 10


def head_names(model: nn.Module) -> frozenset[str]:
    """The names of the head's tensors in the model's state dict.

    Raises:
        ConfigError: the model has no head.
    """
    prefix, head = find_head(model)
    return frozenset(_joined(prefix, name) for name in head.state_dict())


def frozen_names(model: nn.Module, patterns: Iterable[str]) -> frozenset[str]:
    """The names in the model's state dict of what patterns freeze.

    A parameter that has several names is frozen under all of them if one matches.

    Args:
        model: any, with or without values; it stays as it is.
        patterns: globs (`*`, `?`, `[...]`) over the names of parameters, and of the statistics of
            layers without any; or `all-but-head`.

    Returns:
        Parameters, and the statistics of layers whose parameters are all among them.

    Raises:
        ConfigError: a pattern matches nothing, or nothing is left to train.
    """
    patterns = tuple(patterns)
    if not patterns:
        return frozenset()
    layers = dict(_layers(model))
    parameters = {name: item for own, _ in layers.values() for name, item in own.items()}
    of_statistics = {name for own, kept in layers.values() if not own for name in kept}
    matched = frozenset[str]().union(
        *(_matched(model, pattern, [*parameters, *sorted(of_statistics)]) for pattern in patterns)
    )
    held = {id(item) for name, item in parameters.items() if name in matched}
    frozen = {name for name, item in parameters.items() if id(item) in held}
    if len(frozen) == len(parameters):
        raise ConfigError(
            f"learners.frozen = {_listed(patterns)} freezes all {len(parameters)} parameters of "
            f"the model, so that nothing is left to train. Freeze fewer, or {ALL_BUT_HEAD!r}."
        )
    for own, kept in layers.values():
        if own.keys() <= frozen if own else kept <= matched:
            frozen |= kept
    return frozenset(frozen)


def freeze(model: nn.Module, frozen: Collection[str]) -> None:
    """Take the gradients from what `frozen_names` gave, and its layers out of training mode."""
    parts = dict(model.named_modules(remove_duplicate=False))
    for prefix, (own, kept) in _layers(model):
        for name in own.keys() & set(frozen):
            own[name].requires_grad = False
        # This layer's own flag alone: what is in it has parameters of its own.
        if (names := own.keys() | kept) and names <= set(frozen):
            parts[prefix].training = False


def _layers(model: nn.Module) -> Iterator[tuple[str, tuple[dict[str, nn.Parameter], set[str]]]]:
    """Of each module its name, its own parameters, and the names of its own statistics."""
    known = model.state_dict().keys()
    for prefix, module in model.named_modules(remove_duplicate=False):
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        own = {_joined(prefix, name): item for name, item in parameters}
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        kept = {_joined(prefix, name) for name, _ in buffers}
        yield prefix, ({name: own[name] for name in own if name in known}, kept & known)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _matched(model: nn.Module, pattern: str, names: list[str]) -> set[str]:
    if pattern == ALL_BUT_HEAD:
        return set(names) - head_names(model)
    found = {name for name in names if fnmatchcase(name, pattern)}
    if not found:
        more = len(names) - _MAX_NAMED
        raise ConfigError(
            f"learners.frozen: {pattern!r} matches none of the model's {len(names)} parameters: "
            + ", ".join(names[:_MAX_NAMED])
            + (f" and {more} more" if more > 0 else "")
            + f". Give a glob over such names, as '{names[0].partition('.')[0]}.*', or "
            f"{ALL_BUT_HEAD!r}."
        )
    return found


def _listed(patterns: Iterable[str]) -> str:
    return f"[{', '.join(map(repr, patterns))}]"
