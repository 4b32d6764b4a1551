"""Numbers to be told: a part of 353 people, and an MLP that tells how ill they will be."""

import os

import lipt
import torch
from sklearn.datasets import load_diabetes


class People(list):
    """Pairs of ten measurements and a float, which makes it regression; every fifth is held out."""

    standardize = True  # the measurements; what is to be told always is

    def __init__(self, held_out):
        table = load_diabetes(scaled=False)
        rows = zip(torch.tensor(table.data, dtype=torch.float32), table.target.tolist())
        super().__init__(pair for row, pair in enumerate(rows) if (row % 5 == 0) is held_out)


def train():
    return People(held_out=False)


if __name__ == "__main__":
    data, test = lipt.open_dataset(train()), lipt.open_dataset(People(held_out=True))
    if "LIPT_COORDINATOR" in os.environ:
        client = lipt.Client(os.environ["LIPT_COORDINATOR"])
        subset = client.subset(strategy="craig", fraction=0.3)
    else:
        subset = lipt.select(data, "mlp", strategy="craig", fraction=0.3)
    recipe = lipt.Recipe(epochs=50, batch_size=32, learning_rate=0.01)
    trained = lipt.fit("mlp", data, subset=subset, test=test, recipe=recipe)
    print(f"{len(subset)} of {len(data)}: R² {trained.test_accuracy:.1%} on {len(test)} others")
