"""Choose a tenth of your arrays, and train on it."""

import lipt
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

digits = load_digits()  # your data here: uint8 images N x H x W, and class numbers
data = (digits.images * 15).astype("uint8"), digits.target
subset = lipt.select(data, fraction=0.1)
subset.save("subset.npy")  # the row numbers: numpy.load reads them, and Subset.load all

for images, labels in DataLoader(subset.apply(data), batch_size=60, shuffle=True):
    print(f"{len(images)} images of {len(labels.unique())} classes")  # your training step here
