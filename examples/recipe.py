"""The paper's main training as one call: a subset, a model and a recipe."""

import os
from pathlib import Path

from lipt.data.loading import open_dataset
from lipt import Client, Recipe, fit

dataset = open_dataset("mine:data", allowed_modules=["mine"])
with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(strategy="uniform_per_class", fraction=0.1)

trained = fit(
    "mine:model",
    dataset,
    subset=subset,
    recipe=Recipe(epochs=int(os.environ.get("EPOCHS", "200")), batch_size=64, learning_rate=0.05),
    checkpoint=Path("recipe.ckpt"),  # started again, it goes on from there
    allowed_modules=["mine"],
)
_, accuracy = trained.subset_accuracies[-1]
print(f"{trained.num_steps} steps, {100 * accuracy:.1f}% on the subset")
