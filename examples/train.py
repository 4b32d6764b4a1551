import os

import torch
from lipt import Client, ReselectingSampler
from mine import data, model

epochs = int(os.environ.get("EPOCHS", "200"))
examples, network = data(), model(num_classes=10)
std, mean = torch.std_mean(torch.stack([image for image, _ in examples]) / 255)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    client.wait()  # until the newest run has its soup
    sampler = ReselectingSampler(client, network, every=20, fraction=0.1)
    loader = torch.utils.data.DataLoader(examples, batch_size=256, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # every 20 epochs: the weights go up, a subset comes down
        for images, labels in loader:
            logits = network((images / 255 - mean) / std)  # normalized as the coordinator does
            loss = torch.nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
print(f"loss {loss:.3f}, {len(sampler.reselection.history)} times selected again")
