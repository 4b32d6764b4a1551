"""Choose a tenth of the data in one call, and train on it; nothing needs to run beforehand."""

import lipt
import torch
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = torch.as_tensor(digits.images * 15, dtype=torch.uint8), digits.target
train, test = (images[:1400], labels[:1400]), (images[1400:] / 255, torch.as_tensor(labels[1400:]))

subset = lipt.select(train, fraction=0.1)

network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU())
network.append(torch.nn.Linear(64, 10))
optimizer, loss_of = torch.optim.Adam(network.parameters(), lr=0.01), lipt.WeightedSubsetLoss()
for _ in range(50):
    for x, y, weights in torch.utils.data.DataLoader(subset.dataset(train), 32, shuffle=True):
        optimizer.zero_grad()
        loss_of(network(x / 255), y, weights).backward()
        optimizer.step()
right = network(test[0]).argmax(1) == test[1]
print(f"{len(subset)} of {len(labels[:1400])} examples, {right.float().mean():.1%} on the test set")
