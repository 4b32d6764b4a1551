"""Models of users: taken out of wrappers, copied, and tried on a batch of zeros.

Shapes: N examples, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lipt.common.errors import ConfigError
from lipt.common.tensor_files import DTYPES, Weights, quoted
from lipt.data.inputs.specs import Inputs, InputSpec, arguments_of, logits_of, shown_error
from lipt.models.causal_folder import CausalNetwork, require_causal
from lipt.models.head import evaluation_mode, require_head
from lipt.models.networks import predicts_tokens, token_column

# Attribute of a module that `torch.compile` returns.
_COMPILED = "_orig_mod"
# Examples in the trial batch.
_BATCH_SIZE = 2
_KNOWN_DTYPES = frozenset(DTYPES.values())


def plain_module(model: nn.Module) -> nn.Module:
    """The module itself, out of `torch.compile`, DataParallel and DistributedDataParallel."""
    while True:
        inner = model
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        inner = getattr(inner, _COMPILED, inner)
        if inner is model or not isinstance(inner, nn.Module):
            return model
        model = inner


def plain_state(model: nn.Module) -> Weights:
    """The state by the names that the module has without wrappers."""
    return {_plain(name): value for name, value in plain_module(model).state_dict().items()}


def load_plain_state(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights by the names of `plain_state`."""
    plain = plain_module(model)
    plain.load_state_dict({name: weights[_plain(name)] for name in plain.state_dict()})


def _plain(name: str) -> str:
    return name.replace(f"{_COMPILED}.", "")


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of the plain module on the CPU, without compiled parts or overlapping buffers."""
    plain = plain_module(model)
    require_state(plain, "the model")
    try:
        copied = copy.deepcopy(plain).cpu()
    except Exception as error:
        raise ConfigError(
            f"the model cannot be copied: {shown_error(error)}. Give a function of num_classes "
            "that makes it."
        ) from error
    # Its own weights are leaves, also those made in inference mode.
    return prepared(copied)


def prepared(model: nn.Module) -> nn.Module:
    """The plain module, changed in place: no compiled parts, no overlapping buffers."""
    model = plain_module(model)
    for module in list(model.modules()):
        module._compiled_call_impl = None  # noqa: SLF001 - torch has no public way back
        for name, child in list(module.named_children()):
            if (plain := plain_module(child)) is not child:
                setattr(module, name, plain)
        for name, buffer in list(module.named_buffers(recurse=False)):
            # An expanded buffer cannot be loaded into.
            if not is_lazy(buffer) and buffer.layout is torch.strided and 0 in buffer.stride():
                module._buffers[name] = buffer.contiguous()  # noqa: SLF001 - keeps persistence
    return model


def require_state(model: nn.Module, named: str) -> None:
    """Refuse a model whose state cannot be written to a weights file."""
    for name, tensor in _tensors(model).items():
        if is_lazy(tensor):
            raise ConfigError(
                f"{named} has the uninitialized parameter {quoted(name)}. Call it once on a batch."
            )
    require_values(model, named)
    state: Mapping[str, object] = model.state_dict()
    for name, value in state.items():
        kind = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            if value.dtype in _KNOWN_DTYPES and value.layout is torch.strided:
                continue
            kind = f"{value.dtype}, {value.layout}".replace("torch.", "")
        raise ConfigError(
            f"{named} has {quoted(name)} in its state_dict, which is {kind}. Leave it out of the "
            "state, or make it a dense tensor of real numbers."
        )


def require_values(model: nn.Module, named: str) -> None:
    """Refuse a model on the meta device."""
    for name, tensor in _tensors(model).items():
        if tensor.is_meta:
            raise ConfigError(
                f"{named} has no values for {quoted(name)}, on the meta device. Build it on the "
                "CPU, or load its weights."
            )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def require_logits(
    model: nn.Module,
    spec: str,
    *,
    num_classes: int,
    inputs: InputSpec,
    device: torch.device | str = "cpu",
    with_head: bool = True,
) -> None:
    """Check that a model maps a batch of zeros to logits, by its last linear layer if `with_head`.

    Where the classes are the tokens of a text, also to logits of each next token, and causally.
    Unless on the meta device, it has to be trainable, and the same at every call, too.
    """
    has_values = device != "meta"
    if has_values:
        require_values(model, f"the model {spec!r}")
    batch = inputs.zeros(_BATCH_SIZE, device)
    with evaluation_mode(model), torch.enable_grad():
        try:
            outputs = _outputs(model, batch)
        except Exception as error:
            raise ConfigError(
                f"the model {spec!r} fails on {inputs} with {shown_error(error)}. {_remedy(model)}"
            ) from error
        given = f"a {type(outputs).__name__}"
        if isinstance(outputs, Tensor) and outputs.is_floating_point():
            given = f"the shape {tuple(outputs.shape)}"
        accepted, expected = {f"the shape {(_BATCH_SIZE, num_classes)}"}, "N x C"
        if predicts_tokens(inputs, num_classes):
            length = token_column(inputs, spec).shape[0]
            accepted |= {f"the shape {(_BATCH_SIZE, length, num_classes)}"}
            expected = f"N x {length} x C"
        if given not in accepted:
            raise ConfigError(
                f"the model {spec!r} maps {_BATCH_SIZE} examples of {inputs} to {given}. Return "
                f"{expected} floating-point logits, alone or as `logits` of an output; C, here "
                f"{num_classes}, is the factory's argument num_classes."
            )
        assert isinstance(outputs, Tensor)  # noqa: S101 - it has the shape
        of_tokens = outputs.ndim == 3
        if has_values:
            _require_trainable(model, spec, outputs)
            _require_repeatable(model, spec, outputs, batch)
            if of_tokens:
                require_causal(model, spec, outputs.shape[1])
        if with_head and not isinstance(model, CausalNetwork):
            require_head(model, batch, of_tokens=of_tokens)


def in_float32_if_needed(model: nn.Module, inputs: InputSpec) -> nn.Module:
    """The model with float32 weights, if it fails on its inputs with others."""
    if all(dtype is torch.float32 for dtype in _float_dtypes(model)):
        return model
    try:
        with evaluation_mode(model), torch.no_grad():
            _outputs(model, inputs.zeros(_BATCH_SIZE))
    except Exception:  # noqa: BLE001 - a user's model may raise anything
        model.float()
    return model


def _outputs(model: nn.Module, batch: Inputs) -> object:
    args, keywords = arguments_of(batch)
    return logits_of(model(*args, **keywords))


def _float_dtypes(model: nn.Module) -> list[torch.dtype]:
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return [dtype for dtype in dtypes if dtype.is_floating_point]


def _remedy(model: nn.Module) -> str:
    other_dtypes = [dtype for dtype in _float_dtypes(model) if dtype is not torch.float32]
    if other_dtypes:
        return f"Its weights are {other_dtypes[0]}, the inputs float32: call model.float()."
    return (
        "Choose a model that takes one batched tensor, or columns by name as keywords; or another "
        "size with --image-size, or float32 columns."
    )


def _require_trainable(model: nn.Module, spec: str, logits_NC: Tensor) -> None:
    num_parameters = sum(1 for _ in model.parameters())
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"the model {spec!r} cannot be trained: requires_grad is False for all its "
            f"{num_parameters} parameters. Set it to True for those of the head at least."
        )
    if not logits_NC.requires_grad:
        raise ConfigError(
            f"the model {spec!r} cannot be trained: its output has no gradient. Leave out detach() "
            "and no_grad() after its trainable layers."
        )


def _require_repeatable(model: nn.Module, spec: str, logits_NC: Tensor, batch: Inputs) -> None:
    with torch.no_grad():
        again_NC = _outputs(model, batch)
    assert isinstance(again_NC, Tensor)  # noqa: S101 - it was one
    if not torch.equal(logits_NC.nan_to_num(), again_NC.nan_to_num()):
        raise ConfigError(
            f"the model {spec!r} differs between two calls on one batch in evaluation mode. "
            "Give dropout and noise training=self.training, and change no input in place."
        )
