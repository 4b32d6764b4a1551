"""Train on a tenth of the data, with what a ridge head of all of it says as targets."""

import lipt
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

digits = load_digits()
X, y = (digits.data / 16).astype("float32"), digits.target
subset = lipt.select((X, y), fraction=0.1, proxy="ridge:columns", soft_labels=True)
network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
loss_of = lipt.SoftTargetLoss(subset.recommended_alpha)
for _ in range(50):
    for rows, labels, weights, soft_labels in DataLoader(subset.dataset((X, y)), batch_size=32):
        loss = loss_of(network(rows), labels, weights, soft_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{(network(torch.tensor(X)).argmax(1) == torch.tensor(y)).float().mean():.1%} right")
