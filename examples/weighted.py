"""A strategy that weighs its examples, and a loss in which each counts as much as it says."""

import os

import torch
from lipt.trainer import Client, normalized_weights, weighted_cross_entropy
from mine import data, model

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    subset = client.subset(strategy="craig", fraction=0.1)

# Mean 1, so that the learning rate means what it means without weights.
weights = normalized_weights(torch.from_numpy(subset.weights.copy()))
chosen = list(zip(subset.apply(data()), weights))

network = model(num_classes=10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
for _ in range(int(os.environ.get("EPOCHS", "200"))):
    loader = torch.utils.data.DataLoader(chosen, batch_size=64, shuffle=True)
    for (images, labels), batch_weights in loader:
        loss = weighted_cross_entropy(network(images / 255), labels, batch_weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
heaviest = subset.weights.max()
print(f"{len(chosen)} examples, the heaviest stands for {heaviest:.0f}, loss {loss:.3f}")
