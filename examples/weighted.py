"""A strategy with weights, and a loss that multiplies each example by its weight."""

import os

import torch
from lipt import Client, WeightedSubsetLoss
from mine import data, model

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(strategy="craig", fraction=0.1)

chosen = subset.dataset(data())  # (image, label, weight); weights have mean 1
network, loss_of = model(num_classes=10), WeightedSubsetLoss()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
for _ in range(int(os.environ.get("EPOCHS", "200"))):
    for images, labels, weights in torch.utils.data.DataLoader(chosen, batch_size=64, shuffle=True):
        loss = loss_of(network(images / 255), labels, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
heaviest = subset.weights.max()
print(f"{len(chosen)} examples, the heaviest stands for {heaviest:.0f}, loss {loss:.3f}")
