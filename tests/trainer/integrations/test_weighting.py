import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt import Subset, SubsetSampler
from lipt.trainer.integrations.weighting import WeightedLosses, Weighting
from lipt.trainer.subsets.data import UnweightedWarning, normalized_weights
from tests.trainer.integrations.conftest import BATCH, RATE, Loop, Model, Rows
from tests.trainer.made_up import made_up_subset

# What the frameworks say of loggers, workers and old interfaces is none of this test's business.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::lipt.trainer.subsets.data.UnweightedWarning"),
]

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LABELS = torch.tensor([0, 0, 1])
WEIGHTS = torch.tensor([0.5, 1.5, 1.0])

NUM_EPOCHS = 3


def weighted_subset() -> Subset:
    """Ten examples, which stand for 1 to 10."""
    return made_up_subset(range(3, 13), list(range(1, 11)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_are_weighted_per_example(reduction: str) -> None:
    each = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    expected = (each * WEIGHTS).sum() / (3 if reduction == "mean" else 1)
    with WeightedLosses(WEIGHTS) as losses:
        found = functional.cross_entropy(LOGITS, LABELS, reduction=reduction)
        modules = nn.CrossEntropyLoss(reduction=reduction)(LOGITS, LABELS)
    assert torch.allclose(found, expected)
    assert torch.allclose(modules, expected)
    assert losses.num_weighted == 2
    assert not torch.allclose(functional.cross_entropy(LOGITS, LABELS, reduction=reduction), found)


@pytest.mark.parametrize("loss", [functional.cross_entropy, functional.nll_loss])
@pytest.mark.parametrize("classes", [None, torch.tensor([0.2, 3.0])])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_equal_weights_change_no_mean_with_ignored_targets(
    loss: Callable[..., Tensor], classes: Tensor | None, ignored: int
) -> None:
    # Two positions of each of three examples.
    outputs = torch.stack([LOGITS, 2 * LOGITS], dim=-1)
    labels = torch.tensor([[0, ignored], [0, 1], [ignored, 0]])
    options = {"weight": classes, "ignore_index": ignored}
    with WeightedLosses(torch.ones(3)) as losses:
        found = loss(outputs, labels, **options)
    assert losses.num_weighted == 1
    assert torch.allclose(found, loss(outputs, labels, **options))


def test_cross_entropies_mix_label_and_soft_label() -> None:
    soft = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    targets = 0.75 * functional.one_hot(LABELS, 2) + 0.25 * soft
    each = functional.cross_entropy(LOGITS, targets, reduction="none")
    with WeightedLosses(WEIGHTS, soft, alpha=0.25) as losses:
        found = functional.cross_entropy(LOGITS, LABELS)
        # Of soft targets already, nothing is to be made softer.
        functional.cross_entropy(LOGITS, targets)
    assert torch.allclose(found, (each * WEIGHTS).mean())
    assert (losses.num_weighted, losses.num_softened) == (2, 1)


def test_a_step_without_a_cross_entropy_warns_about_soft_labels() -> None:
    subset = made_up_subset(range(10), soft_labels=[[0.5, 0.5]] * 10)
    sampler = SubsetSampler(subset, shuffle=False, alpha=0.5)
    list(sampler)
    weighting = Weighting(sampler)
    weighting.begin(1)
    labels, logits = torch.zeros(5, dtype=torch.int64), torch.eye(5, 2)
    soft_step = weighting.step(lambda: functional.cross_entropy(logits, labels), lambda: 5)
    targets = torch.tensor([[0.75, 0.25]]).expand(5, 2)
    assert torch.allclose(soft_step(), functional.cross_entropy(logits, targets))
    hard_step = weighting.step(
        lambda: functional.mse_loss(labels.float(), labels.float()), lambda: 5
    )
    with pytest.warns(UnweightedWarning, match=r"soft labels .* do not count"):
        hard_step()


def test_losses_of_other_sizes_are_not_weighted() -> None:
    with WeightedLosses(WEIGHTS) as losses:
        of_two = functional.cross_entropy(LOGITS[:2], LABELS[:2])
        each = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.equal(of_two, functional.cross_entropy(LOGITS[:2], LABELS[:2]))
    assert torch.equal(each, functional.cross_entropy(LOGITS, LABELS, reduction="none"))
    assert losses.num_weighted == 0


def by_hand() -> Tensor:
    model, subset, sampler = Model(), weighted_subset(), SubsetSampler(weighted_subset())
    weights_K = normalized_weights(torch.from_numpy(subset.weights.copy()))
    by_row = dict(zip(subset.indices.tolist(), weights_K.tolist(), strict=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for rows in torch.tensor(list(sampler)).split(BATCH):
            images = torch.stack([Rows()[row]["images"] for row in rows.tolist()])
            losses = functional.cross_entropy(model.net(images), rows % 2, reduction="none")
            loss = (losses * torch.tensor([by_row[row] for row in rows.tolist()])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.net.weight.detach()


@pytest.mark.parametrize("workers", [0, 1])
def test_frameworks_weight_losses(
    loop: Loop, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    model = Model()
    with caplog.at_level(logging.WARNING):
        loop(model, SubsetSampler(weighted_subset()), NUM_EPOCHS, workers=workers)
    assert torch.allclose(model.net.weight.detach(), by_hand(), atol=1e-6)
    said = [text for text in caplog.messages if text.startswith("lipt: ")]
    assert said == ["lipt: each example's loss is multiplied by the weight that made-up gave it."]


class OwnLoss(Model):
    def forward(self, images: Tensor, ids: Tensor) -> dict[str, Tensor]:
        return {"loss": self.net(images).square().mean()}


def test_a_step_whose_loss_cannot_be_weighted_warns(loop: Loop) -> None:
    with pytest.warns(UnweightedWarning, match="computes no per-example loss of"):
        loop(OwnLoss(), SubsetSampler(weighted_subset()), NUM_EPOCHS)
