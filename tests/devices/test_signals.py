"""Signals, gradient norms, dynamics, the ridge head and patch features on a device."""

import pytest
import torch
from torch import Tensor

from lipt.core.passes import Batches
from lipt.core.proxies.ridge import LeaveOneOut, leave_one_out
from lipt.core.proxies.untrained import draw_filters, patch_features
from lipt.core.signals.compute import compute_signals, full_gradient_norms, loss_sum, trainable
from lipt.core.signals.dynamics import Dynamics, States, compute_dynamics
from lipt.core.signals.signals import Signals
from lipt.core.stages.recheck import fit_quadratic_model
from lipt.data.inputs.model_input import images_in
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.devices.conftest import close

pytestmark = pytest.mark.slow

DATASET = made_up_dataset(50)


def batches(device: torch.device, size: int = 16) -> Batches:
    return Batches(DATASET, IMAGE, device, size)


def tensors(value: object) -> dict[str, Tensor]:
    return {name: part for name, part in vars(value).items() if isinstance(part, Tensor)}


def test_signals_equal_the_cpu_s_and_stay_on_the_device(device: torch.device) -> None:
    def signals(where: torch.device) -> Signals:
        return compute_signals(made_up_network().to(where), batches(where))

    found = tensors(signals(device))
    close(found, tensors(signals(CPU)))
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}


def test_gradient_norms_equal_the_cpu_s(device: torch.device) -> None:
    def norms(where: torch.device, chunk_size: int) -> Tensor:
        return full_gradient_norms(made_up_network().to(where), batches(where, chunk_size))

    # vmap does not see through what is pretended.
    for chunk_size in (1, 16) if device.type == "cuda" else (1,):
        close({"norms": norms(device, chunk_size)}, {"norms": norms(CPU, chunk_size)})


@pytest.mark.filterwarnings(
    "ignore:for .* copying from a non-meta parameter"
)  # of what is pretended
def test_dynamics_equal_the_cpu_s(device: torch.device) -> None:
    def dynamics(where: torch.device) -> Dynamics:
        seeds = [[2, 3], [4, 5], [6, 7]]
        learners = tuple(
            tuple(lambda seed=seed: made_up_network(seed=seed).state_dict() for seed in own)
            for own in seeds
        )
        states = States(lambda: made_up_network(seed=1).state_dict(), learners)
        return compute_dynamics(
            made_up_network().to(where),
            states,
            batches(where),
            own_learner_N=(torch.arange(50) % 4 - 1).to(torch.int16),
            batch_norm_examples_M=DATASET.examples(torch.arange(20)),
        )

    close(tensors(dynamics(device)), tensors(dynamics(CPU)))


def test_the_quadratic_model_equals_the_cpu_s(device: torch.device) -> None:
    def quadratic(where: torch.device) -> dict[str, Tensor]:
        model = made_up_network().to(where).eval()
        _, inputs_B, targets_B = next(iter(batches(where)))
        losses = [loss_sum(model, DATASET.target, inputs_B, targets_B)]
        fitted = fit_quadratic_model(losses, trainable(model), 16, seed=0)
        return {f"h {name}": tensor for name, tensor in fitted.diagonal.items()} | dict(
            fitted.gradient
        )

    close(quadratic(device), quadratic(CPU), tolerance=1e-3)


@pytest.mark.parametrize("wide", [False, True], ids=["primal", "dual"])
def test_the_ridge_head_equals_the_cpu_s(device: torch.device, *, wide: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(40) % 3
    heads_CD = torch.randn(3, 80 if wide else 10, generator=generator)
    features_ND = heads_CD[labels_N] + torch.randn(40, heads_CD.shape[1], generator=generator)

    def judged(where: torch.device) -> LeaveOneOut:
        there_ND, there_N = features_ND.to(where), labels_N.to(where)
        drawn = torch.Generator().manual_seed(0)
        return leave_one_out(there_ND, there_N, 3, generator=drawn)

    found, expected = judged(device), judged(CPU)
    assert found.penalty == expected.penalty
    close({"": found.outputs_NC}, {"": expected.outputs_NC}, tolerance=1e-3)


def test_patch_features_equal_the_cpu_s(device: torch.device) -> None:
    images_NCHW = images_in(made_up_dataset(20).examples(torch.arange(20)))
    filters = draw_filters(images_NCHW, generator=torch.Generator().manual_seed(0), num_filters=16)
    found = patch_features(images_NCHW.to(device), filters.to(device))
    close({"": found}, {"": patch_features(images_NCHW, filters)}, tolerance=1e-3)
