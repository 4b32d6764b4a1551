"""A data set that holds no images, and a small model for it: made-up sentences of three classes.

Every example is a dictionary of token numbers, as many as its sentence has words, and of three
figures about it; the label is the name of its class.
"""

import torch
from torch import Tensor, nn

NUM_TOKENS = 40
LONGEST = 12
_CLASSES = ("animals", "cars", "plants")


def train() -> list[dict[str, object]]:
    return _sentences(600, seed=0)


def held_out() -> list[dict[str, object]]:
    return _sentences(150, seed=1)


class Reader(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 16, padding_idx=0)
        self.hidden = nn.Linear(16 + 3, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, num_classes)

    def forward(self, tokens: Tensor, figures: Tensor) -> Tensor:
        words_BE = self.embedding(tokens).mean(dim=1)
        both = torch.cat([words_BE, figures], dim=1)
        logits_BC: Tensor = self.head(torch.relu(self.norm(self.hidden(both))))
        return logits_BC


def reader(*, num_classes: int) -> nn.Module:
    return Reader(num_classes)


def _sentences(number: int, seed: int) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, object]] = []
    for row in range(number):
        label = row % len(_CLASSES)
        drawn = int(torch.randint(4, LONGEST + 1, (), generator=generator)) if row else LONGEST
        words = torch.randint(1, NUM_TOKENS, (drawn,), generator=generator)
        own = 1 + 13 * label + torch.randint(0, 13, (drawn,), generator=generator)
        is_own = torch.rand(drawn, generator=generator) < 0.5
        tokens, figures = torch.where(is_own, own, words), torch.rand(3, generator=generator)
        rows.append({"tokens": tokens, "figures": figures, "label": _CLASSES[label]})
    return rows
