"""Numbers to be told: a subset of people, and an MLP that tells how ill they will be."""

import os

import torch
from lipt.common.data import open_dataset
from lipt.trainer import Client, Recipe, fit
from sklearn.datasets import load_diabetes


def people(part):
    """Pairs of ten measurements and a float, which makes it regression; every fifth is held out."""
    table = load_diabetes(scaled=False)
    rows = zip(torch.tensor(table.data, dtype=torch.float32), table.target.tolist())
    return Standardized(pair for row, pair in enumerate(rows) if (row % 5 == 0) == (part == "test"))


class Standardized(list):
    standardize = True  # the ten measurements; what is to be told always is


def train():
    return people("train")


def test():
    return people("test")


if __name__ == "__main__":
    data, held_out = (
        open_dataset(f"regression:{part}", allowed_modules=["regression"])
        for part in ("train", "test")
    )
    with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
        client.wait()
        subset = client.subset(strategy="craig", fraction=0.3)
    recipe = Recipe(epochs=int(os.environ.get("EPOCHS", "50")), batch_size=32, learning_rate=0.01)
    trained = fit("mlp", data, subset=subset, test=held_out, recipe=recipe)
    found = 100 * trained.test_accuracy
    print(f"{len(subset)} of {len(data)} people: R² {found:.1f}% on {len(held_out)} others")
