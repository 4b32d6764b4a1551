"""Training loops of both frameworks on one small model, which notes what it is shown."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from lipt import ReselectingSampler
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import FakeClient, made_up_subset

NUM_EXAMPLES, BATCH, RATE = 40, 4, 0.1


def subset_of(number: int) -> Subset:
    """The `number`-th answer: eight examples from 4 x `number` on, two batches."""
    return made_up_subset(range(4 * number, 4 * number + 8), [0.1] * 8, number=number)


class Rows(Dataset[dict[str, Any]]):
    """Each example's features are its own number."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"images": torch.full((3,), row / NUM_EXAMPLES), "ids": row}


class Model(nn.Module):
    """Two classes; tells a sampler its losses where that wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)
        self.seen: list[int] = []
        self.sampler: Any = None

    def forward(self, images: Tensor, ids: Tensor) -> dict[str, Tensor]:
        logits = self.net(images)
        if self.training:
            self.seen.extend(ids.tolist())
        return {"loss": functional.cross_entropy(logits, ids % 2), "logits": logits}

    def epochs(self) -> list[list[int]]:
        """Eight examples each."""
        return [sorted(self.seen[start : start + 8]) for start in range(0, len(self.seen), 8)]


# Trains a model with a sampler for some epochs; `resume`d after some.
Loop = Callable[..., Any]


def lightning_loop(folder: Path) -> Loop:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pl: Any = pytest.importorskip("lightning.pytorch")
    from lipt.trainer.integrations.lightning import SamplerCallback

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, model: Model) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.model(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    def train(model: Model, sampler: Any, epochs: int, *, resume: int = 0, workers: int = 0) -> Any:
        model.sampler = sampler
        loader: Any = DataLoader(
            Rows(),
            batch_size=BATCH,
            sampler=sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        saving = pl.callbacks.ModelCheckpoint(folder, filename="after-{epoch}", save_top_k=-1)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[SamplerCallback(sampler), saving],
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=1,
        )
        path = folder / f"after-epoch={resume - 1}.ckpt" if resume else None
        module = Module(model)
        trainer.fit(module, loader, ckpt_path=path)
        assert "training_step" not in vars(module)
        return trainer

    return train


def huggingface_loop(folder: Path) -> Loop:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers: Any = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    from lipt.trainer.integrations.huggingface import train_on

    def train(
        model: Model,
        sampler: Any,
        epochs: int,
        *,
        resume: float = 0,
        workers: int = 0,
        **options: Any,
    ) -> Any:
        model.sampler = sampler
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            disable_tqdm=True,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            num_train_epochs=epochs,
            optim="sgd",
            per_device_train_batch_size=BATCH,
            report_to=[],
            use_cpu=True,
            **({"save_strategy": "epoch", "eval_strategy": "epoch"} | options),
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
        train_on(trainer, sampler)
        path = str(folder / f"checkpoint-{round(2 * resume)}") if resume else None
        trainer.train(resume_from_checkpoint=path)
        return trainer

    return train


@pytest.fixture
def lightning(tmp_path: Path) -> Loop:
    return lightning_loop(tmp_path)


@pytest.fixture
def huggingface(tmp_path: Path) -> Loop:
    return huggingface_loop(tmp_path)


@pytest.fixture(params=[lightning_loop, huggingface_loop])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Loop:
    made: Loop = request.param(tmp_path)
    return made


@pytest.fixture
def fake_client() -> FakeClient:
    return FakeClient(subset_of)


@pytest.fixture
def make_sampler(fake_client: FakeClient) -> Callable[..., ReselectingSampler]:
    def make(model: Model, every: int = 2, **options: Any) -> ReselectingSampler:
        client: Any = fake_client
        return ReselectingSampler(
            client, model.net, "made-up", fraction=0.2, every=every, **options
        )

    return make
