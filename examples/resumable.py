"""Re-selection in a loop that can be stopped at any moment and started again."""

import os
from pathlib import Path

import torch
from lipt import Client, ReselectingSampler
from mine import data, model

checkpoint = Path("checkpoint.pt")
epochs = int(os.environ.get("EPOCHS", "200"))
examples, network = data(), model(num_classes=10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()
    sampler = ReselectingSampler(client, network, every=5, fraction=0.1, num_epochs=epochs)
    loader = torch.utils.data.DataLoader(examples, batch_size=64, sampler=sampler)
    first_epoch = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])  # the subset, and the epoch it belongs to
        first_epoch = saved["epoch"] + 1
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(network(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"sampler": sampler.state_dict(), "epoch": epoch}, checkpoint)
print(f"epochs {first_epoch} to {epochs - 1}, on {sampler.subset.digest[:12]} at the end")
