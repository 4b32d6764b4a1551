"""InfoBatch: three lines of a loop leave half of the easy examples out of every epoch."""

import os

import torch
from lipt.trainer import InfoBatchSampler, with_ids
from mine import data, model

epochs = int(os.environ.get("EPOCHS", "200"))
examples, network = data(), model(num_classes=10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
sampler = InfoBatchSampler(len(examples), num_epochs=epochs)
loader = torch.utils.data.DataLoader(with_ids(examples), batch_size=64, sampler=sampler)
num_trained = 0
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    num_trained += len(sampler)
    for ids, (images, labels) in loader:  # 1: the row numbers of the batch
        logits = network(images / 255)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        sampler.update(ids, losses)  # 2: what the next epochs are drawn by
        loss = (losses * sampler.weights(ids)).mean()  # 3: what stays counts for what is left out
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
saved = 1 - num_trained / (epochs * len(examples))
print(f"{100 * saved:.0f}% of all passes saved, loss {loss:.3f}")
