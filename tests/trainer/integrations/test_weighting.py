from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lipt.common.subsets import subset_digest
from lipt.trainer import Subset, SubsetSampler
from lipt.trainer.integrations.weighting import WeightedLosses, Weighting
from lipt.trainer.subsets.weighted import UnweightedWarning, normalized_weights
from tests.trainer.made_up import made_up_subset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl: Any = pytest.importorskip(
        "lightning.pytorch", reason="the extra 'lightning' is not installed"
    )
    transformers: Any = pytest.importorskip(
        "transformers", reason="the extra 'huggingface' is not installed"
    )

from lipt.trainer.integrations.huggingface import train_on
from lipt.trainer.integrations.lightning import SamplerCallback

# What the frameworks say of loggers, workers and old interfaces is none of this test's business.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::lipt.trainer.subsets.weighted.UnweightedWarning"),
]

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LABELS = torch.tensor([0, 0, 1])
WEIGHTS = torch.tensor([0.5, 1.5, 1.0])

IMAGES = torch.arange(60, dtype=torch.float32).view(20, 3) / 20
CLASSES = torch.arange(20) % 2
NUM_EPOCHS, BATCH, RATE = 3, 4, 0.1


def weighted_subset() -> Subset:
    """Ten examples, which stand for 1 to 10."""
    return made_up_subset(range(3, 13), list(range(1, 11)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_count_each_example_by_its_weight(reduction: str) -> None:
    each = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    expected = (each * WEIGHTS).sum() / (3 if reduction == "mean" else 1)
    with WeightedLosses(WEIGHTS) as losses:
        found = functional.cross_entropy(LOGITS, LABELS, reduction=reduction)
        modules = nn.CrossEntropyLoss(reduction=reduction)(LOGITS, LABELS)
    assert torch.allclose(found, expected)
    assert torch.allclose(modules, expected)
    assert losses.num_weighted == 2
    # Nothing stays.
    assert not torch.allclose(functional.cross_entropy(LOGITS, LABELS, reduction=reduction), found)


def test_cross_entropies_have_targets_between_label_and_soft_label() -> None:
    soft = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    targets = 0.75 * functional.one_hot(LABELS, 2) + 0.25 * soft
    each = functional.cross_entropy(LOGITS, targets, reduction="none")
    with WeightedLosses(WEIGHTS, soft, alpha=0.25) as losses:
        found = functional.cross_entropy(LOGITS, LABELS)
        # Of soft targets already, nothing is to be made softer.
        functional.cross_entropy(LOGITS, targets)
    assert torch.allclose(found, (each * WEIGHTS).mean())
    assert (losses.num_weighted, losses.num_softened) == (2, 1)


def test_a_step_without_a_cross_entropy_is_told_that_soft_labels_do_not_count() -> None:
    soft = np.full((10, 2), 0.5, np.float16)
    indices, weights = np.arange(10), np.ones(10, np.float32)
    digest = subset_digest(indices, weights, soft)
    subset = Subset(indices, weights, "f" * 64, digest, "craig", soft_labels=soft)
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


def test_losses_of_other_sizes_and_of_each_example_stay_as_they_are() -> None:
    with WeightedLosses(WEIGHTS) as losses:
        of_two = functional.cross_entropy(LOGITS[:2], LABELS[:2])
        each = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.equal(of_two, functional.cross_entropy(LOGITS[:2], LABELS[:2]))
    assert torch.equal(each, functional.cross_entropy(LOGITS, LABELS, reduction="none"))
    assert losses.num_weighted == 0


def by_hand() -> Tensor:
    """The weights of a linear model after training with weights in a loop of one's own."""
    net = network()
    subset = weighted_subset()
    weights_K = normalized_weights(torch.from_numpy(subset.weights.copy()))
    by_row = dict(zip(subset.indices.tolist(), weights_K.tolist(), strict=True))
    sampler = SubsetSampler(subset)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for rows in torch.tensor(list(sampler)).split(BATCH):
            losses = functional.cross_entropy(net(IMAGES[rows]), CLASSES[rows], reduction="none")
            loss = (losses * torch.tensor([by_row[row] for row in rows.tolist()])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.weight.detach()


def network() -> nn.Linear:
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, sampler: SubsetSampler) -> None:
        super().__init__()
        self.net = network()
        self.sampler = sampler

    def on_train_epoch_start(self) -> None:
        self.sampler.set_epoch(self.current_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class OwnLoss(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()


@pytest.fixture
def quiet(tmp_path: Path) -> dict[str, Any]:
    return {
        "accelerator": "cpu",
        "default_root_dir": tmp_path,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "logger": False,
        "max_epochs": NUM_EPOCHS,
    }


def fit(module: Module, options: dict[str, Any], workers: int = 0) -> None:
    sampler = module.sampler
    loader = DataLoader(
        TensorDataset(IMAGES, CLASSES), batch_size=BATCH, sampler=sampler, num_workers=workers
    )
    pl.Trainer(callbacks=[SamplerCallback(sampler)], **options).fit(module, loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_lightning_weighs_the_loss_and_says_so(
    quiet: dict[str, Any], caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    # Epochs are ordered by Lightning's own first one, so that the sampler's stays.
    module = Module(SubsetSampler(weighted_subset()))
    with caplog.at_level(logging.WARNING):
        fit(module, quiet, workers)
    assert torch.allclose(module.net.weight.detach(), by_hand(), atol=1e-6)
    said = [text for text in caplog.messages if text.startswith("lipt: ")]
    assert said == ["lipt: each example's loss is multiplied by the weight that made-up gave it."]
    assert "training_step" not in vars(module)


def test_a_step_whose_loss_cannot_be_weighed_warns(quiet: dict[str, Any]) -> None:
    with pytest.warns(UnweightedWarning, match="computes no loss of torch.nn.functional"):
        fit(OwnLoss(SubsetSampler(weighted_subset())), quiet)


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"images": IMAGES[row], "labels": CLASSES[row]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def test_hugging_faces_trainer_weighs_the_loss_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        disable_tqdm=True,
        eval_strategy="epoch",  # whose batches are none of the sampler's
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        num_train_epochs=NUM_EPOCHS,
        optim="sgd",
        per_device_train_batch_size=BATCH,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    model = Classifier()
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
    sampler = SubsetSampler(weighted_subset())
    train_on(trainer, sampler)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert torch.allclose(model.net.weight.detach(), by_hand(), atol=1e-6)
    assert len([text for text in caplog.messages if text.startswith("lipt: ")]) == 1
