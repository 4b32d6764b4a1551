"""Re-selection under Hugging Face's Trainer: pip install '.[huggingface]'."""

import os

import torch
from transformers import Trainer, TrainingArguments
from lipt import Client, ReselectingSampler
from lipt.trainer.integrations.huggingface import train_on
from mine import data, model


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model(num_classes=10)

    def forward(self, images, labels):
        logits = self.net(images / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


network = Classifier()
arguments = TrainingArguments(
    output_dir="trained",
    num_train_epochs=int(os.environ.get("EPOCHS", "200")),
    per_device_train_batch_size=64,
    learning_rate=0.01,
    save_strategy="epoch",  # every checkpoint holds its subset
    save_total_limit=1,
    report_to="none",
)
examples = [{"images": image, "labels": label} for image, label in data()]

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    # The network within: its weights have the names of the run's model.
    sampler = ReselectingSampler(client, network.net, every=5, fraction=0.1)
    trainer = Trainer(network, arguments, train_dataset=examples)
    train_on(trainer, sampler)
    trainer.train()
print(f"{len(sampler.reselection.history)} times selected again")
