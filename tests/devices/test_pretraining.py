"""Initialization, the soup and batch norm on a device."""

import pytest
import torch

from lipt.common.config.run_config import InitializationConfig
from lipt.common.models import build_model, lay_out
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.specs import Weights
from lipt.core.evaluation import Evaluator, Evaluators
from lipt.core.soup import Soup, greedy_soup, uniform_soup
from lipt.core.training import initialize
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.devices.comparing import close

pytestmark = pytest.mark.slow

DATASET = made_up_dataset(120)
EVERY = torch.arange(120)


def learner(seed: int) -> Weights:
    return made_up_network(seed=seed).state_dict()


def evaluator(device: torch.device) -> Evaluator:
    return Evaluator(
        model=made_up_network().to(device),
        inputs=IMAGE,
        device=device,
        examples_N=DATASET.examples(EVERY),
        target=SingleLabel(3),
        targets_N=DATASET.labels_N,
        batch_norm_examples_M=DATASET.examples(EVERY[:64]),
        batch_size=32,
    )


def soup(device: torch.device, *, greedy: bool) -> Soup:
    learners = [lambda seed=seed: learner(seed) for seed in range(4)]
    evaluate = evaluator(device)
    evaluators = Evaluators(evaluate, [evaluate.model])
    if greedy:
        return greedy_soup(learners, evaluators, num_alphas=4, on_progress=lambda *_: None)
    return uniform_soup(learners, evaluators, on_progress=lambda *_: None)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "uniform"])
def test_a_soup_has_the_cpus_accuracy_and_the_same_bits_again(
    device: torch.device, *, greedy: bool
) -> None:
    first, again, expected = (soup(where, greedy=greedy) for where in (device, device, CPU))
    assert first.accuracy == again.accuracy
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    # An example or two of 120 may lie on the edge.
    assert first.accuracy == pytest.approx(expected.accuracy, abs=0.02)
    assert {tensor.device.type for tensor in first.weights.values()} == {"cpu"}


def test_batch_norm_statistics_are_the_cpus(device: torch.device) -> None:
    weights = learner(2)
    found, expected = (evaluator(where)(weights).mended for where in (device, CPU))
    assert found
    close(found, expected)


def test_theta_star_is_the_cpus_and_the_same_bits_again(device: torch.device) -> None:
    def trained(where: torch.device) -> Weights:
        model = build_model("resnet8", num_classes=3, inputs=DATASET.inputs, seed=0)
        return initialize(
            lay_out(model, "resnet8", where),
            DATASET,
            EVERY,
            InitializationConfig(steps=2, batch_size=30, learning_rate=0.01),
            IMAGE,
            seed=1,
            device=where,
            cpu_threads=1,
            on_progress=lambda *_: None,
        )

    found, again, expected = trained(device), trained(device), trained(CPU)
    assert all(torch.equal(found[key], again[key]) for key in found)
    close(found, expected, tolerance=1e-3)
