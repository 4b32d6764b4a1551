"""Steps on a pretended device: the CPU waits for nothing, and the weights are right."""

from __future__ import annotations

import torch

from lipt.common.data import Dataset
from lipt.common.weights.specs import Weights
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.examples import Examples
from lipt.trainer.main_training.forward import place_model
from lipt.trainer.main_training.steps import Steps
from tests.core.signals.made_up import made_up_dataset
from tests.pretended import Pretended, brought

RECIPE = Recipe(batch_size=16, steps=4, label_smoothing=0.1, nesterov=True, warmup_steps=2)


def stepped(dataset: Dataset, device: torch.device, there: Pretended | None = None) -> Weights:
    """The weights after an epoch; what was waited for before its first step is forgotten."""
    model, forward_pass = place_model("resnet8", dataset, RECIPE, device, ())
    examples = Examples(None, dataset, device, weighted=True)
    steps = Steps(model, forward_pass, RECIPE, 4)
    if there is not None:
        there.waits.clear()
    batches = RECIPE.batches(torch.arange(len(dataset)))
    for step, batch in enumerate(examples.batches(batches)):
        steps.take(step, batch)
    return model.state_dict()


def test_no_step_waits_for_the_device() -> None:
    dataset = made_up_dataset(64)
    expected = stepped(dataset, torch.device("cpu"))
    with Pretended() as there:
        found = stepped(dataset, there.device, there)
        assert there.waits == {}
        weights = brought(found)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
