import pytest
import torch
from torch import Tensor

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.models.head import find_head
from lipt.models.transformers import CausalTransformer

INPUTS = ColumnsSpec((Column("", ColumnType.INT64, (6,), num_values=11),))


def model() -> CausalTransformer:
    torch.manual_seed(0)
    return CausalTransformer(num_classes=11, inputs=INPUTS).eval()


def logits(*tokens: int) -> Tensor:
    with torch.no_grad():
        found: Tensor = model()(torch.tensor([tokens]))
    return found[0]


def test_each_position_has_logits_by_the_tokens_up_to_it_and_their_order() -> None:
    first, second = logits(1, 4, 5, 6), logits(1, 4, 9, 0)
    assert first.shape == (4, 11)
    assert torch.allclose(first[:2], second[:2], atol=1e-6)
    assert not torch.allclose(first[2], second[2], atol=1e-3)
    assert not torch.allclose(logits(4, 5, 6)[-1], logits(5, 4, 6)[-1], atol=1e-4)
    # Padding at the end changes nothing.
    assert torch.allclose(logits(1, 4, 5), logits(1, 4, 5, 0, 0, 0)[:3], atol=1e-6)


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


def test_classes_are_refused() -> None:
    words = r"next of 11 tokens, and the data has 2 classes\. Choose"
    with pytest.raises(ConfigError, match=words):
        CausalTransformer(num_classes=2, inputs=INPUTS)
    numbers = ColumnsSpec((Column("", ColumnType.FLOAT32, (6,)),))
    with pytest.raises(ConfigError, match=r"text:causal cannot take .*, only tokens"):
        CausalTransformer(num_classes=2, inputs=numbers)
