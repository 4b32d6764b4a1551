import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import ConfigError, LiptError
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.models.head import HEAD
from lipt.models.own_model import (
    copy_of,
    in_float32_if_needed,
    load_plain_state,
    plain_module,
    plain_state,
    prepared,
    require_logits,
    require_state,
)

INPUTS = ColumnsSpec((Column("", ColumnType.FLOAT32, (4,)),))
compiled: Callable[[nn.Module], Any] = partial(torch.compile, backend="eager")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, rows_BD: Tensor) -> Any:
        return self.fc(self.body(rows_BD))


def with_forward(forward: Callable[[Any, Tensor], Any]) -> nn.Module:
    return type("Own", (Net,), {"forward": forward})()


def with_part(**parts: Any) -> nn.Module:
    net = Net()
    for name, part in parts.items():
        setattr(net, name, part)
    return net


def require(model: nn.Module, **options: Any) -> None:
    require_logits(model, "own", num_classes=3, inputs=INPUTS, **options)


def test_a_module_is_taken_out_of_its_wrappers() -> None:
    net = Net()
    for wrapped in (net, compiled(net), nn.DataParallel(net), compiled(nn.DataParallel(net))):
        assert plain_module(wrapped) is net
    assert plain_state(compiled(net)).keys() == net.state_dict().keys()


def test_a_copy_has_no_compiled_parts_and_the_module_keeps_its_own() -> None:
    net = Net()
    expected = net(torch.ones(2, 4))
    names = set(net.state_dict())
    net.body = compiled(net.body)
    net.compile(backend="eager")
    copied = copy_of(net)
    assert set(copied.state_dict()) == names == set(plain_state(net))
    assert copied._compiled_call_impl is None
    assert torch.equal(copied(torch.ones(2, 4)), expected)
    assert "body._orig_mod.weight" in net.state_dict()
    load_plain_state(net, {name: torch.zeros_like(it) for name, it in copied.state_dict().items()})
    assert not any(bool(parameter.any()) for parameter in net.parameters())


def test_an_expanded_buffer_can_be_loaded_into() -> None:
    net = Net()
    net.register_buffer("scale", torch.ones(1).expand(3))
    net.register_buffer("hidden", torch.ones(1).expand(3), persistent=False)
    ready = prepared(net)
    ready.load_state_dict({**net.state_dict(), "scale": torch.arange(3.0)})
    assert ready.get_buffer("scale").tolist() == [0, 1, 2]
    assert "hidden" not in ready.state_dict()


def test_weights_made_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        net = Net()
    loss = copy_of(net)(torch.ones(2, 4)).sum()
    torch.autograd.backward(loss)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: with_part(lock=threading.Lock()), "cannot be copied: TypeError: .*num_classes"),
        (lambda: nn.LazyLinear(3), "uninitialized parameter 'weight'.*Call it once"),
        (lambda: Net().to("meta"), "no values for 'body.weight', on the meta device"),
        (
            type("Own", (Net,), {"get_extra_state": lambda _: {"version": 1}}),
            "'_extra_state' in its state_dict, which is a dict",
        ),
        (
            lambda: with_part(factor=nn.Parameter(torch.ones(2, dtype=torch.complex64))),
            "'factor' in its state_dict, which is complex64, strided",
        ),
    ],
)
def test_a_module_that_cannot_be_written_is_refused(
    model: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        copy_of(model())


def frozen() -> nn.Module:
    return Net().requires_grad_(requires_grad=False)


def fails(model: Any, rows_BD: Tensor) -> Tensor:
    raise ValueError(f"first line\nof {rows_BD.dtype}. Second sentence " + "x" * 500)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (frozen, "requires_grad is False for all its 4 parameters"),
        (lambda: with_forward(lambda net, x: net.fc(x[:, :1].expand(-1, 5)).detach()), "detach"),
        (
            lambda: with_forward(lambda net, x: net.fc(functional.dropout(net.body(x)))),
            "differs between two calls on one batch.*training=self.training",
        ),
        (lambda: with_forward(fails), r"with ValueError: first line of torch\.float32\. Choose"),
        (lambda: Net().double(), r"are torch\.float64, the inputs float32: call model\.float\(\)"),
        (lambda: Net().to("meta"), "on the meta device"),
        (lambda: with_forward(lambda net, x: [net.fc(net.body(x))]), "to a list"),
        (lambda: with_forward(lambda net, x: net.fc(net.body(x))[:, None]), r"shape \(2, 1, 3\)"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_one_sentence(
    model: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(LiptError, match=words) as refused:
        require(model())
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_trial_changes_no_flag_and_no_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[1].eval()
    before = {name: it.clone() for name, it in model.state_dict().items()}
    require(model)
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(before[name], it) for name, it in model.state_dict().items())


def body_in_half(net: Any, rows_BD: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        features_BD = net.body(rows_BD)
    return net.fc(features_BD.float())  # type: ignore[no-any-return]


def head_in_half(net: Any, rows_BD: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net.fc(net.body(rows_BD))  # type: ignore[no-any-return]


@pytest.mark.parametrize("forward", [body_in_half, head_in_half])
def test_autocast_within_a_model_is_accepted(forward: Callable[[Any, Tensor], Tensor]) -> None:
    require(with_forward(forward))


def test_other_dtypes_become_float32_unless_the_model_casts_itself() -> None:
    net = in_float32_if_needed(Net().half(), INPUTS)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    own = with_forward(lambda net, x: net.fc(net.body(x.double()))).double()
    kept = in_float32_if_needed(own, INPUTS)
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.float64}
    require(kept)


def test_a_state_of_dense_tensors_is_accepted() -> None:
    net = Net()
    net.register_buffer("counts", torch.arange(3))
    require_state(net, "the model")


class OfTokens(nn.Module):
    """Logits of the next of six tokens; `seen` is what a position sees of all states."""

    def __init__(self, seen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.states, self.fc, self.seen = nn.Embedding(6, 4), nn.Linear(4, 6), seen

    def forward(self, tokens_BL: Tensor) -> Tensor:
        logits_BLV: Tensor = self.fc(self.seen(self.states(tokens_BL)))
        return logits_BLV


def require_tokens(model: nn.Module) -> None:
    texts = ColumnsSpec((Column("", ColumnType.INT64, (5,), num_values=6),))
    require_logits(model, "own", num_classes=6, inputs=texts)


def test_logits_of_each_next_token_are_accepted_from_earlier_ones_alone() -> None:
    require_tokens(OfTokens(lambda states_BLD: states_BLD.cumsum(dim=1)))
    # Classes as many as tokens.
    require_tokens(OfTokens(lambda states_BLD: states_BLD.mean(dim=1)))
    with pytest.raises(ConfigError, match="a token changes the logits before it"):
        require_tokens(OfTokens(lambda states_BLD: states_BLD.flip(1).cumsum(dim=1)))
    with pytest.raises(ConfigError, match=r"to the shape \(2, 4, 6\). Return N x 5 x C"):
        require_tokens(OfTokens(lambda states_BLD: states_BLD[:, 1:]))


def test_the_last_linear_layer_gives_the_logits_of_tokens() -> None:
    model = OfTokens(lambda states_BLD: states_BLD.cumsum(dim=1))
    model.last = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="calls its linear layer 'last' with the shapes"):
        require_tokens(model)
    setattr(model, HEAD, "fc")
    require_tokens(model)
