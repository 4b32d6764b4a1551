"""Models that are given tensors by name: a user's own, and what Hugging Face's return.

Shapes: B examples, C classes, D features.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec, call_model
from lipt.common.models import build_model, forward_with_features
from lipt.common.models.footprint import measure_model
from tests.sentences import Reader

WORDS = Column("tokens", ColumnType.INT64, (5,), num_values=40)
FIGURES = Column("figures", ColumnType.FLOAT32, (3,))
SPEC = ColumnsSpec((WORDS, FIGURES))


class Wrapped(nn.Module):
    """Returns its logits inside of an output, after a pooler as BERT has one."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.reader = Reader(8)
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, tokens: Tensor, figures: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.classifier(self.reader(tokens, figures)), loss=None)


class Late(nn.Module):
    """Its last linear layer is called for every word."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 4)
        self.score = nn.Linear(4, num_classes)

    def forward(self, tokens: Tensor, figures: Tensor) -> Tensor:
        scores_BWC: Tensor = self.score(self.embedding(tokens)) + figures.sum()
        return scores_BWC[:, -1]


def wrapped(*, num_classes: int) -> nn.Module:
    return Wrapped(num_classes)


def late(*, num_classes: int) -> nn.Module:
    return Late(num_classes)


def silent(*, num_classes: int) -> nn.Module:
    return nn.Linear(3, num_classes)


def built(name: str, inputs: ColumnsSpec = SPEC) -> nn.Module:
    module = "tests.common.models.test_keywords"
    return build_model(
        f"{module}:{name}", num_classes=4, inputs=inputs, seed=0, allowed_modules=[module]
    )


def test_an_output_with_logits_is_as_good_as_logits() -> None:
    model = built("wrapped").eval()
    inputs = {"tokens": torch.tensor([[1, 2, 3, 4, 0]] * 2), "figures": torch.rand(2, 3)}
    logits_BC, features_BD = forward_with_features(model, inputs)
    assert torch.equal(logits_BC, call_model(model, inputs))
    assert isinstance(model, Wrapped)
    assert torch.equal(logits_BC, model.classifier(features_BD))


def test_what_a_model_takes_is_measured_with_keywords() -> None:
    model = built("wrapped")
    figures = measure_model(model, "wrapped", inputs=SPEC)
    assert figures.weights_bytes == sum(item.nbytes for item in model.state_dict().values())
    # The words' embeddings alone are 5 x 16 numbers of 4 bytes.
    assert figures.training_bytes > 5 * 16 * 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("late", r"inputs of the shapes \[\(2, 5, 4\)\]; one batch of N x D features is needed"),
        ("silent", r"fails on tokens int64\[5\], figures float32\[3\] with TypeError.*keywords"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(name)


def test_double_precision_is_named_where_a_model_has_single() -> None:
    doubles = ColumnsSpec((Column("", ColumnType.FLOAT64, (3,)),))
    with pytest.raises(ConfigError, match="give float32 where its weights are float32"):
        built("silent", doubles)


def test_models_of_images_say_what_the_data_has_instead() -> None:
    for spec in ("resnet8", "torchvision:resnet18"):
        with pytest.raises(ConfigError, match=f"'{spec}' takes images; the data has tokens int64"):
            build_model(spec, num_classes=4, inputs=SPEC, seed=0)


def test_a_sequence_classifier_of_hugging_face_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    config = transformers.DistilBertConfig(vocab_size=40, num_labels=4, **sizes)
    monkeypatch.setitem(
        globals(),
        "distilled",
        lambda *, num_classes: transformers.DistilBertForSequenceClassification(config),
    )
    mask = Column("attention_mask", ColumnType.INT64, (5,), num_values=2)
    words = Column("input_ids", ColumnType.INT64, (5,), num_values=40)
    model = built("distilled", ColumnsSpec((words, mask)))
    assert measure_model(model, "distilled", inputs=ColumnsSpec((words, mask))).training_bytes > 0
