"""Fine-tuning: a backbone of other classes gets a new head, and a tenth is enough for it."""

import os

import torch
from lipt import Client
from mine import data, model
from safetensors.torch import load


def train(network, examples, epochs):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for images, labels in torch.utils.data.DataLoader(examples, batch_size=64, shuffle=True):
            loss = torch.nn.functional.cross_entropy(network(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


backbone = model(num_classes=5)  # knows the digits 0 to 4 alone
train(backbone, [(image, label) for image, label in data() if label < 5], epochs=5)
torch.save(backbone.state_dict(), "backbone.pt")

settings = {
    "initialization": {"new_head": True},
    "learners": {"num_learners": 4, "batch_size": 64, "frozen": ["all-but-head"]},
}
with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    run = client.start_run(settings, initial_weights="backbone.pt")
    run = client.wait(run.run_id)
    subset = client.subset(run.run_id, fraction=0.1, proxy="ridge:initial")
    weights = load(client.weights(run.run_id))
print(run.initialization_note)

network = model(num_classes=10)
network.load_state_dict(weights)
train(network, subset.apply(data()), epochs=int(os.environ.get("EPOCHS", "50")))
with torch.no_grad():
    logits = network(torch.stack([image for image, _ in data()]) / 255)
right = logits.argmax(dim=1) == torch.tensor([label for _, label in data()])
sent = sum(learner.result.size_bytes for learner in run.learners if learner.result)
print(f"{len(subset)} examples, {sent} bytes from learners, {100 * right.float().mean():.1f}%")
