"""Features that another model has made: `python features.py write`, then a coordinator on them."""

import os
import sys

import torch
from safetensors.torch import save_file
from lipt.common.data import open_dataset
from lipt.trainer import Client, Recipe, fit

if "write" in sys.argv:  # here the pixels, in place of what a large model makes of them
    for part in ("train", "test"):
        digits = open_dataset(f"digits-{part}")
        pixels = digits.images(torch.arange(len(digits))).flatten(1).float()
        save_file({"X": pixels, "y": digits.labels_N}, f"{part}.safetensors")
    sys.exit()

train, test = open_dataset("features:train.safetensors"), open_dataset("features:test.safetensors")

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(fraction=0.1)

recipe = Recipe(epochs=int(os.environ.get("EPOCHS", "50")), batch_size=32, learning_rate=0.05)
trained = fit("linear", train, subset=subset, test=test, recipe=recipe)
print(
    f"{len(subset)} of {len(train)} rows: {100 * trained.test_accuracy:.1f}% on {len(test)} others"
)
