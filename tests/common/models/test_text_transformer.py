"""Shapes: B texts, L places, C classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec, InputSpec, call_model
from lipt.common.models import find_head
from lipt.common.models.models import TextTransformer, text_tiny

TOKENS = Column("", ColumnType.INT64, (12,), num_values=100)


def build(seed: int = 0) -> TextTransformer:
    torch.manual_seed(seed)
    model = text_tiny(num_classes=3, inputs=ColumnsSpec((TOKENS,)))
    assert isinstance(model, TextTransformer)
    return model


def tokens(*lengths: int) -> Tensor:
    tokens_BL = torch.randint(
        1, 100, (len(lengths), 12), generator=torch.Generator().manual_seed(0)
    )
    return tokens_BL * (torch.arange(12) < torch.tensor(lengths)[:, None])


def test_texts_have_logits_with_and_without_values_and_by_any_name() -> None:
    model = build()
    assert model(tokens(12, 3)).shape == (2, 3)
    assert torch.equal(call_model(model, {"words": tokens(5)}), model(tokens(5)))
    assert find_head(model)[0] == "fc"
    assert model.to("meta")(torch.zeros(4, 12, dtype=torch.int64, device="meta")).shape == (4, 3)


def test_padding_does_not_change_the_logits() -> None:
    model = build()
    padded_BL = tokens(5, 5)
    torch.testing.assert_close(model(padded_BL), model(padded_BL[:, :5]))
    # Nor does what stands beside a text in its batch.
    torch.testing.assert_close(model(tokens(5, 12))[:1], model(tokens(5)))


def test_a_text_without_tokens_has_finite_logits_and_gradients() -> None:
    model = build()
    model(tokens(0, 4)).sum().backward()
    assert model(tokens(0)).isfinite().all()
    assert all(
        parameter.grad is not None and bool(parameter.grad.isfinite().all())
        for parameter in model.parameters()
    )


def test_the_order_of_words_counts() -> None:
    text_BL = tokens(12)
    model = build()
    assert not torch.allclose(model(text_BL), model(text_BL.flip(1)), atol=1e-4)


def test_training_mode_and_gradients_change_no_bit() -> None:
    model, text_BL = build(), tokens(12, 7, 3, 0)
    training = model.train()(text_BL)
    with torch.inference_mode():
        evaluation = model.eval()(text_BL)
    assert torch.equal(training, evaluation)


def train(steps: int) -> tuple[TextTransformer, Tensor, Tensor]:
    """On texts whose class is whether they have the word 7, 8 or neither."""
    model = build()
    generator = torch.Generator().manual_seed(1)
    text_BL = torch.randint(10, 100, (48, 12), generator=generator)
    labels_B = torch.arange(48) % 3
    place_B = torch.randint(0, 12, (48,), generator=generator)
    for row in range(48):
        if labels_B[row] < 2:
            text_BL[row, place_B[row]] = 7 + labels_B[row]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(text_BL), labels_B).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model, text_BL, labels_B


def test_20_steps_learn_words_and_give_the_same_bits_again() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, text_BL, labels_B = train(20)
        again, _, _ = train(20)
    finally:
        torch.set_num_threads(threads)
    assert (model(text_BL).argmax(dim=1) == labels_B).float().mean() > 0.9
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize(
    "inputs",
    [
        ImageSpec(1, 8, 8),
        ColumnsSpec((Column("", ColumnType.FLOAT32, (12,)),)),
        ColumnsSpec((Column("", ColumnType.INT64, (12,)),)),
        ColumnsSpec((Column("", ColumnType.INT64, (3, 4), num_values=5),)),
        ColumnsSpec(
            (
                Column("tokens", ColumnType.INT64, (12,), num_values=9),
                Column("mask", ColumnType.BOOL, (12,)),
            )
        ),
    ],
)
def test_inputs_other_than_tokens_are_refused(inputs: InputSpec) -> None:
    with pytest.raises(ConfigError) as caught:
        text_tiny(num_classes=2, inputs=inputs)
    assert f"text:tiny cannot take {inputs}: it takes tokens alone" in str(caught.value)
