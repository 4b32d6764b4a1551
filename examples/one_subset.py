"""Ask for one subset, keep it in a file, and train on it."""

import os

import torch
from lipt import Client
from mine import data, model

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()  # until the newest run has its soup
    subset = client.subset(fraction=0.1)

subset.save("subset.npy")  # .json and .csv work as well
chosen = subset.apply(data())  # refuses other data than the subset was chosen from

network = model(num_classes=10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
for _ in range(int(os.environ.get("EPOCHS", "200"))):
    for images, labels in torch.utils.data.DataLoader(chosen, batch_size=64, shuffle=True):
        loss = torch.nn.functional.cross_entropy(network(images / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{len(chosen)} of {len(data())} examples, digest {subset.digest[:12]}, loss {loss:.3f}")
