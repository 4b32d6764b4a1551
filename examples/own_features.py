"""Selection on features of your own: any N x d, such as text or CLIP embeddings."""

import os

import torch
from lipt import Client
from mine import data

# Row i is example i. Here: the pixels, on their 16 principal axes.
pixels = torch.stack([image for image, _ in data()]).flatten(1).float()
centred = pixels - pixels.mean(dim=0)
features = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:16].T

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(strategy="kcenter", budget=100, features={"features": features})
print(f"{len(subset)} examples by {subset.strategy} on {list(features.shape)} features")
