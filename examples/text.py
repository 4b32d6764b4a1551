"""Text: a subset of paragraphs and a small transformer that is trained on them."""

import os

from lipt.common.data import open_dataset
from lipt.trainer import Client, Recipe, fit

# Of your own: csv:train.csv?text=COLUMN&label=COLUMN, and so the test set.
train, test = open_dataset("pydocs-train"), open_dataset("pydocs-test")

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(fraction=0.3)

recipe = Recipe(epochs=int(os.environ.get("EPOCHS", "20")), batch_size=32, learning_rate=0.05)
trained = fit("text:tiny", train, subset=subset, test=test, recipe=recipe)
print(
    f"{len(subset)} of {len(train)} texts: {100 * trained.test_accuracy:.1f}% on {len(test)} others"
)
