"""Steps of an optimizer: parts of a batch add up to its gradient, and AdamW or SGD by name."""

import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.run_config import LearnerOptimizer
from lipt.core.pretraining.training import AdamW, ForwardPass, Sgd, optimizer_of
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType
from lipt.data.targets.values import MASKED, NextTokens, Regression, SingleLabel, Target
from lipt.models.transformers import CausalTransformer

CPU = torch.device("cpu")
TOKENS = Column("", ColumnType.INT64, (6,), num_values=11)
NUMBERS = Column("", ColumnType.FLOAT32, (3,))


def texts() -> tuple[nn.Module, Stored, Tensor, ForwardPass]:
    """Seven texts, of which each has another number of tokens that count."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    tokens_BL = torch.randint(3, 11, (7, 6), generator=draws)
    wanted_BL = torch.randint(3, 11, (7, 6), generator=draws)
    for row in range(7):
        wanted_BL[row, : row % 6] = MASKED
    inputs = ColumnsFormat((ColumnFormat(TOKENS),))
    model = CausalTransformer(num_classes=11, inputs=inputs.spec)
    return model, {"": tokens_BL}, wanted_BL, forward(inputs, NextTokens(11, 6))


def forward(inputs: ColumnsFormat, target: Target) -> ForwardPass:
    return ForwardPass(inputs, target, CPU, torch.contiguous_format, bfloat16=False)


def gradients(model: nn.Module) -> list[Tensor]:
    return [item.grad.clone() for item in model.parameters() if item.grad is not None]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 20])
def test_parts_have_the_gradient_of_the_whole_batch(num_parts: int) -> None:
    model, examples_B, wanted_BL, passed = texts()
    whole = passed.mean_loss(model, examples_B, wanted_BL)
    torch.autograd.backward(whole)
    expected = gradients(model)
    sgd = Sgd(model, lr=0.0)
    loss = sgd.step(passed.loss_parts(model, examples_B, wanted_BL, num_parts))
    assert float(loss) == pytest.approx(float(whole.detach()), rel=1e-6)
    for found, wanted in zip(gradients(model), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-7)
    if num_parts == 1:
        assert all(map(torch.equal, gradients(model), expected))


@pytest.mark.parametrize("target", [SingleLabel(2), Regression((0.0, 1.0), (1.0, 2.0))])
def test_parts_of_other_targets_weigh_by_their_examples(target: Target) -> None:
    torch.manual_seed(0)
    model, rows_B = nn.Linear(3, 2), torch.randn(5, 3)
    numbers_BT, classes_B = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    targets_B = numbers_BT if isinstance(target, Regression) else classes_B
    passed = forward(ColumnsFormat((ColumnFormat(NUMBERS),)), target)
    whole = passed.mean_loss(model, {"": rows_B}, targets_B)
    parts = list(passed.loss_parts(model, {"": rows_B}, targets_B, 3))
    assert len(parts) == 3
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_a_part_is_computed_when_the_one_before_has_its_gradient() -> None:
    model, examples_B, wanted_BL, passed = texts()
    seen = list[bool]()

    def watched() -> object:
        for part in passed.loss_parts(model, examples_B, wanted_BL, 3):
            seen.append(bool(gradients(model)))
            yield part

    Sgd(model, lr=0.0).step(watched())  # type: ignore[arg-type]
    assert seen == [False, True, True]


def test_the_optimizer_is_of_the_target_unless_it_is_named() -> None:
    tokens, classes = NextTokens(11, 6), SingleLabel(2)
    assert (optimizer_of(tokens), optimizer_of(classes)) == (AdamW, Sgd)
    for target in (tokens, classes):
        assert optimizer_of(target, LearnerOptimizer.SGD) is Sgd
        assert optimizer_of(target, LearnerOptimizer.ADAMW) is AdamW
