"""Another random tenth in every epoch, in place of a fixed subset; no coordinator is asked."""

import os

import torch
from lipt import RepeatedRandomSampler
from mine import data, model

epochs = int(os.environ.get("EPOCHS", "200"))
examples, network = data(), model(num_classes=10)
labels = [label for _, label in examples]
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
sampler = RepeatedRandomSampler(len(examples), fraction=0.1, labels=labels)
loader = torch.utils.data.DataLoader(examples, batch_size=64, sampler=sampler)
seen = set()
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    seen.update(sampler)
    for images, targets in loader:
        loss = torch.nn.functional.cross_entropy(network(images / 255), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
print(f"{len(sampler)} examples an epoch, {len(seen)} of {len(examples)} seen, loss {loss:.3f}")
