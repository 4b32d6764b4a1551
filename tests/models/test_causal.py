import pytest
import torch
from torch import Tensor

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.models.head import find_head
from lipt.models.registry import build_model, build_without_values
from lipt.models.transformers import CausalTransformer

INPUTS = ColumnsSpec((Column("", ColumnType.INT64, (6,), num_values=11),))


def model() -> CausalTransformer:
    torch.manual_seed(0)
    return CausalTransformer(num_classes=11, inputs=INPUTS).eval()


def logits(*tokens: int) -> Tensor:
    with torch.no_grad():
        found: Tensor = model()(torch.tensor([tokens]))
    return found[0]


def test_each_position_has_logits_of_the_next_token() -> None:
    assert logits(1, 4, 5).shape == (3, 11)


def test_no_position_sees_a_later_token() -> None:
    first, second = logits(1, 4, 5, 6), logits(1, 4, 9, 0)
    assert torch.allclose(first[:2], second[:2], atol=1e-6)
    assert not torch.allclose(first[2], second[2], atol=1e-3)


def test_padding_at_the_end_changes_nothing() -> None:
    assert torch.allclose(logits(1, 4, 5), logits(1, 4, 5, 0, 0, 0)[:3], atol=1e-6)


def test_the_order_of_earlier_tokens_matters() -> None:
    assert not torch.allclose(logits(4, 5, 6)[-1], logits(5, 4, 6)[-1], atol=1e-4)


def test_the_head_is_the_embedding() -> None:
    name, head = find_head(built := model())
    assert name == "fc"
    assert head.weight is built.tokens.weight


def test_untrained_it_knows_nothing() -> None:
    # Equal probabilities have the loss log 11.
    found = torch.nn.functional.cross_entropy(logits(1, 4, 5), torch.tensor([4, 5, 2]))
    assert float(found) == pytest.approx(2.398, abs=0.4)


def test_it_learns_to_copy() -> None:
    built = model().train()
    optimizer = torch.optim.AdamW(built.parameters(), lr=3e-3)
    draws = torch.Generator().manual_seed(0)
    loss = torch.tensor(9.0)
    for _ in range(80):
        word_B1 = torch.randint(3, 11, (32, 1), generator=draws)
        tokens_BL = torch.cat([torch.ones_like(word_B1), word_B1, torch.full_like(word_B1, 2)], 1)
        loss = torch.nn.functional.cross_entropy(built(tokens_BL)[:, 2], word_B1[:, 0])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert float(loss.detach()) < 0.1


def test_one_seed_builds_one_model_and_none_takes_values_on_the_meta_device() -> None:
    first, second = (
        build_model("text:causal", num_classes=11, inputs=INPUTS, seed=3) for _ in range(2)
    )
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    empty = build_without_values("text:causal", num_classes=11, inputs=INPUTS)
    assert empty.state_dict().keys() == first.state_dict().keys()


def test_classes_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"next of 11 tokens, and the data has 2 classes\. Choose"
    ):
        CausalTransformer(num_classes=2, inputs=INPUTS)
    numbers = ColumnsSpec((Column("", ColumnType.FLOAT32, (6,)),))
    with pytest.raises(ConfigError, match=r"text:causal cannot take .*, only tokens"):
        CausalTransformer(num_classes=2, inputs=numbers)
