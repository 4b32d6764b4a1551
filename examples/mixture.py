"""How much of each source to train on: three sources of digits, and 60 of those that matter."""

import torch
from sklearn.datasets import load_digits
import lipt

digits = load_digits()
images = torch.from_numpy(digits.images * 15.9).to(torch.uint8)[:, None]
labels = torch.from_numpy(digits.target)
sources = {
    "upright": (images[:600], labels[:600]),
    "inverted": (255 - images[600:1200], labels[600:1200]),
    "wrong labels": (255 - images[1200:1700], labels[1200:1700].flip(0)),
}
target = (255 - images[1700:1760], labels[1700:1760])

mixture = lipt.mix(sources, target, progress=False)
print(mixture)

# Rows of all sources, one after another, and a loss weight for each.
subset = mixture.sample(500)
train = subset.dataset(mixture.data)
print(f"{len(train)} examples to train on")
