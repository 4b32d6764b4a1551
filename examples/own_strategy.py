"""A strategy of your own: of every class the labels that the model finds least likely."""

from typing import Annotated

import lipt
import torch
from sklearn.datasets import load_digits


@lipt.strategy(summary="least likely labels, without the very last", cost="linear")
def doubted(
    layer: lipt.LastLayer, budget: int, *, spared: Annotated[int, "left out as wrong"] = 0
) -> lipt.Selection:
    """Keep the examples whose label has the lowest probability, but for the `spared` lowest."""
    rows = torch.arange(len(layer))
    likelihoods = layer.errors_NC[rows, layer.labels_N] + 1  # an error is p - 1 at the label
    spared = min(spared, len(layer) - budget)
    chosen = likelihoods.argsort(stable=True)[spared : spared + budget]
    return lipt.Selection(chosen, torch.ones(budget))


if __name__ == "__main__":
    digits = load_digits(return_X_y=True)
    print(lipt.select(digits, fraction=0.1, strategy="doubted", options={"spared": 2}))
