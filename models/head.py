"""A model's head: the last linear layer, its inputs, and which weights are frozen.

A layer whose own parameters are all frozen stays in evaluation mode and keeps its statistics, such
as batch norm's. Names are those of the state dict, so that weights files can omit them.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.text import did_you_mean, listed
from lipt.data.inputs.specs import Inputs, call_model, in_full

# Pattern for all parameters but those of the last layer.
ALL_BUT_HEAD = "all-but-head"
# Attribute of a model with adapters, and the part of a name in their factor that is trained.
ADAPTERS, TRAINED_FACTOR = "lipt_adapters", ".lora_B."
# Attribute of a user's model: the name of its head, where that is not the last linear layer.
HEAD = "lipt_head"


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set all modules to evaluation mode, then restore each one's flag."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """The name ("" for a purely linear model) and layer of the classifier.

    It is the `nn.Linear` that the model's attribute `lipt_head` names, else the last one.
    """
    linear = [named for named in model.named_modules() if isinstance(named[1], nn.Linear)]
    if not linear:
        raise ConfigError(
            f"{type(model).__name__} has no nn.Linear layer. Let it end in one for the logits."
        )
    asked = getattr(model, HEAD, linear[-1][0])
    for name, head in linear:
        if name == asked:
            return name, cast(nn.Linear, head)
    names = [name for name, _ in linear]
    raise ConfigError(
        f"{type(model).__name__} has no linear layer {asked!r}.{did_you_mean(str(asked), names)} "
        f"Name one of {listed(names, 10)}: head=NAME."
    )


def forward_with_features(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Run the model once: logits_NC and features_ND, with logits_NC = head(features_ND).

    Both are float32 where autocast has made them narrower.
    """
    logits_NC, features_ND = _with_head_inputs(model, inputs, num_dims=2)
    return logits_NC, in_full(features_ND)


def forward_with_states(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Run a causal model once: logits, and its head's inputs B x L x D; ConfigError for others."""
    return _with_head_inputs(model, inputs, num_dims=3)


def _with_head_inputs(model: nn.Module, inputs: Inputs, num_dims: int) -> tuple[Tensor, Tensor]:
    """The logits, and the inputs of the head, of so many dimensions."""
    name, head = find_head(model)
    given: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    try:
        logits = call_model(model, inputs)
    finally:
        handle.remove()
    if len(given) != 1 or given[0].ndim != num_dims:
        expected = "N x D features" if num_dims == 2 else "B x L x D states"
        shapes = [tuple(features.shape) for features in given]
        raise ConfigError(
            f"{type(model).__name__} calls its linear layer {name!r} with the shapes {shapes}. "
            f'Call it once, with {expected}, or name another classifier: head="NAME".'
        )
    return logits, given[0]


def require_head(model: nn.Module, inputs: Inputs, *, of_tokens: bool = False) -> None:
    """Check that `find_head` finds the output layer; on the meta device, by tensor identity.

    of_tokens: whether there are logits for each position of a text.
    """
    name, head = find_head(model)
    returned: list[Tensor] = []
    handle = head.register_forward_hook(lambda *called: returned.append(called[-1]))
    try:
        with torch.no_grad():
            forward = forward_with_states if of_tokens else forward_with_features
            logits_NC, _ = forward(model, inputs)
    finally:
        handle.remove()
    (found_NC,) = returned
    if logits_NC.is_meta:
        same = logits_NC is found_NC
    else:
        # A model may return NaN for zeros that are all masked.
        same = torch.equal(logits_NC.nan_to_num(), found_NC.to(logits_NC).nan_to_num())
    if not same:
        raise ConfigError(
            f"{type(model).__name__} does not return the output of its linear layer {name!r}. "
            "Return raw logits, or name the classifier: head=NAME, or the attribute lipt_head."
        )


def head_names(model: nn.Module) -> frozenset[str]:
    prefix, head = find_head(model)
    return frozenset(_joined(prefix, name) for name in head.state_dict())


def frozen_names(model: nn.Module, patterns: Iterable[str]) -> frozenset[str]:
    """The state dict's names of frozen parameters, and of their layers' statistics.

    Patterns are globs (`*`, `?`, `[...]`) over names of parameters, and of statistics in layers
    without parameters; or `all-but-head`. A shared parameter is frozen under all names if one
    matches. Statistics are frozen if all parameters of their layer are. Of a model with adapters
    all but their trained factor is frozen, too.
    """
    patterns = tuple(patterns)
    if getattr(model, ADAPTERS, False):
        untrained = {name for name in model.state_dict() if TRAINED_FACTOR not in name}
        return frozenset(untrained | matching_names(model, patterns))
    return matching_names(model, patterns)


def matching_names(model: nn.Module, patterns: tuple[str, ...]) -> frozenset[str]:
    """As `frozen_names`, by the patterns alone."""
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
            f"learners.frozen = [{', '.join(map(repr, patterns))}] freezes all {len(parameters)} "
            f"parameters of the model. Freeze fewer, or {ALL_BUT_HEAD!r}."
        )
    for own, kept in layers.values():
        if own.keys() <= frozen if own else kept <= matched:
            frozen |= kept
    return frozenset(frozen)


def freeze(model: nn.Module, frozen: Collection[str]) -> None:
    """Freeze parameters, by `frozen_names`, and set their layers to evaluation mode."""
    parts = dict(model.named_modules(remove_duplicate=False))
    for prefix, (own, kept) in _layers(model):
        for name in own.keys() & set(frozen):
            own[name].requires_grad = False
        # Only this layer's flag: inner layers have their own parameters.
        if (names := own.keys() | kept) and names <= set(frozen):
            parts[prefix].training = False


def _layers(model: nn.Module) -> Iterator[tuple[str, tuple[dict[str, nn.Parameter], set[str]]]]:
    """Each module's name, its own parameters, and the names of its own statistics."""
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
    matching = {name for name in names if fnmatchcase(name, pattern)}
    if not matching:
        raise ConfigError(
            f"learners.frozen: {pattern!r} matches none of the model's {len(names)} parameters: "
            f"{listed(names, 10)}. Give a glob over such names, as "
            f"'{names[0].partition('.')[0]}.*', or {ALL_BUT_HEAD!r}."
        )
    return matching
