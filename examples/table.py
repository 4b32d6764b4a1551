"""A table: a subset of its rows and an MLP that is trained on them."""

import os

from lipt.common.data import open_dataset
from lipt.trainer import Client, Recipe, fit

# Of your own: csv:train.csv?label=COLUMN and csv:test.csv?label=COLUMN
train, test = open_dataset("breast_cancer-train"), open_dataset("breast_cancer-test")

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(fraction=0.1)

recipe = Recipe(epochs=int(os.environ.get("EPOCHS", "50")), batch_size=32, learning_rate=0.05)
trained = fit("mlp", train, subset=subset, test=test, recipe=recipe)
print(
    f"{len(subset)} of {len(train)} rows: {100 * trained.test_accuracy:.1f}% on {len(test)} others"
)
