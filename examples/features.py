"""Features of another model: a tenth of them, and a line that is trained on them."""

import os

import lipt
import torch
from safetensors.torch import save_file

for part in ("train", "test"):  # here the pixels, in place of what a large model makes of them
    digits = lipt.open_dataset(f"digits-{part}")
    pixels = digits.images(torch.arange(len(digits))).flatten(1).float()
    save_file({"X": pixels, "y": digits.labels_N}, f"{part}.safetensors")
train, test = (lipt.open_dataset(f"features:{part}.safetensors") for part in ("train", "test"))

if "LIPT_COORDINATOR" in os.environ:
    subset = lipt.Client(os.environ["LIPT_COORDINATOR"]).subset(fraction=0.1)
else:
    subset = lipt.select(train, "linear", fraction=0.1)

recipe = lipt.Recipe(epochs=50, batch_size=32, learning_rate=0.05)
trained = lipt.fit("linear", train, subset=subset, test=test, recipe=recipe)
print(f"{len(subset)} of {len(train)} rows: {trained.test_accuracy:.1%} on {len(test)} others")
