"""Re-selection under Lightning: pip install '.[lightning]'."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lipt import Client, ReselectingSampler
from lipt.trainer.integrations.lightning import SamplerCallback
from mine import data, model


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model(num_classes=10)

    def training_step(self, batch, batch_index):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images / 255), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    module = Classifier()
    # The network, not the module around it: its weights have the names of the run's model.
    sampler = ReselectingSampler(client, module.net, every=5, fraction=0.1)
    loader = torch.utils.data.DataLoader(data(), batch_size=64, sampler=sampler)
    trainer = Trainer(
        max_epochs=int(os.environ.get("EPOCHS", "200")),
        callbacks=[SamplerCallback(sampler)],
        logger=False,
    )
    trainer.fit(module, loader)
print(f"{len(sampler.reselection.history)} times selected again")
