"""The running reductions against all N x C x L x T probabilities at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipt.common.data.dataset import Dataset
from lipt.common.errors import SignalsError
from lipt.common.inputs.model_input import to_model_input
from lipt.common.signals.passes import Batches
from lipt.common.weights.specs import Weights
from lipt.core.signals import compute_dynamics as module
from lipt.core.signals.compute_dynamics import States, compute_dynamics, margins_of
from lipt.core.signals.dynamics import Dynamics
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network

NUM_EXAMPLES, NUM_CLASSES = 45, 4


@pytest.fixture
def dataset() -> Dataset:
    return made_up_dataset(NUM_EXAMPLES, NUM_CLASSES)


@pytest.fixture
def batch_norm_images() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (20, 3, 6, 6), generator=generator, dtype=torch.uint8)


def make_model(seed: int = 0) -> nn.Module:
    return made_up_network(num_classes=NUM_CLASSES, seed=seed)


def weights_of(seed: int) -> Weights:
    return {name: tensor.clone() for name, tensor in make_model(seed).state_dict().items()}


def loader(seed: int) -> Callable[[], Weights]:
    return lambda: weights_of(seed)


# Three learners, each with one snapshot: T = 3.
SEEDS = ((10, 11), (20, 21), (30, 31))
STATES = States(loader(1), tuple(tuple(map(loader, seeds)) for seeds in SEEDS))
# Which of them was trained on each example; every fourth is in no shard.
OWN = (torch.arange(NUM_EXAMPLES) % 4 - 1).to(torch.int16)


def compute(
    dataset: Dataset,
    batch_norm_images: Tensor | None,
    *,
    batch_size: int = 16,
    states: States = STATES,
    reports: list[tuple[int, int]] | None = None,
) -> Dynamics:
    seen: list[tuple[int, int]] = [] if reports is None else reports
    batches = Batches(
        dataset, IMAGE, CPU, batch_size, lambda done, total: seen.append((done, total))
    )
    return compute_dynamics(
        make_model(),
        states,
        batches,
        own_learner_N=OWN.clamp(max=len(states.learners) - 1),
        batch_norm_examples_M=batch_norm_images,
    )


def direct(dataset: Dataset, batch_norm_images: Tensor | None) -> Dynamics:
    """All logits of all models at once, then the definitions as they are written."""

    def logits(seed: int) -> Tensor:
        model = make_model(seed).eval()
        if batch_norm_images is not None:
            # All images as one batch: its mean and unbiased variance are the statistics.
            convolution, batch_norm, *_ = model.children()
            seen = convolution(to_model_input(batch_norm_images, IMAGE, CPU))
            batch_norm.running_mean = seen.mean(dim=(0, 2, 3)).detach()
            batch_norm.running_var = seen.var(dim=(0, 2, 3)).detach()
        with torch.no_grad():
            inputs = to_model_input(dataset.images(torch.arange(len(dataset))), IMAGE, CPU)
            return model(inputs).double()

    logits_LTNC = torch.stack(
        [torch.stack([logits(seed) for seed in (1, *seeds)]) for seeds in SEEDS]
    )
    logits_NLTC = logits_LTNC.permute(2, 0, 1, 3)
    chances_NLTC = logits_NLTC.softmax(dim=-1)
    rows, labels = torch.arange(len(dataset)), dataset.labels_N
    others = logits_NLTC.clone()
    others[rows, :, :, labels] = -math.inf
    onehot_N1C = nn.functional.one_hot(labels, NUM_CLASSES)[:, None]
    committed_NLC = chances_NLTC[:, :, -1]
    disagreement = []
    for chances_LC, own in zip(committed_NLC, OWN.tolist(), strict=True):
        asked = [learner for learner in range(len(SEEDS)) if learner != own]
        disagreement.append(chances_LC[asked].var(dim=0).sum())
    return Dynamics(
        probabilities_NLT=chances_NLTC[rows, :, :, labels].float(),
        margins_NLT=(logits_NLTC[rows, :, :, labels] - others.amax(dim=-1)).float(),
        error_norms_NL=(committed_NLC - onehot_N1C).norm(dim=-1).float(),
        disagreement_N=torch.stack(disagreement).float(),
        own_learner_N=OWN,
    )


def close(first: Dynamics, second: Dynamics) -> None:
    for name, values in vars(first).items():
        torch.testing.assert_close(values, getattr(second, name), rtol=1e-4, atol=1e-5, msg=name)


def test_reductions_are_those_of_all_outputs_at_once(dataset: Dataset) -> None:
    dynamics = compute(dataset, None)
    assert dynamics.probabilities_NLT.shape == (NUM_EXAMPLES, 3, 3)
    dtypes = {name: values.dtype for name, values in vars(dynamics).items()}
    assert dtypes.pop("own_learner_N") == torch.int16
    assert set(dtypes.values()) == {torch.float32}
    close(dynamics, direct(dataset, None))


def test_batch_norm_statistics_are_those_of_each_states_weights(
    dataset: Dataset, batch_norm_images: Tensor
) -> None:
    # One part, so that the variance is that of all images.
    dynamics = compute(dataset, batch_norm_images, batch_size=20)
    close(dynamics, direct(dataset, batch_norm_images))
    assert not torch.allclose(dynamics.margins_NLT, compute(dataset, None).margins_NLT)


@pytest.mark.parametrize("block_bytes", [1, 16 * 500, 2 * 16 * 500])
def test_block_size_does_not_matter_to_the_last_bit(
    dataset: Dataset, batch_norm_images: Tensor, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compute(dataset, batch_norm_images)
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    parts = compute(dataset, batch_norm_images)
    for name, values in vars(whole).items():
        assert torch.equal(values, getattr(parts, name)), name


@pytest.mark.parametrize("batch_size", [1, 7, 128])
def test_batch_size_does_not_matter(dataset: Dataset, batch_size: int) -> None:
    close(compute(dataset, None, batch_size=batch_size), compute(dataset, None))


def test_images_are_read_once_for_all_states(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    images = Dataset.images

    def counted(self: Dataset, ids: Tensor) -> Tensor:
        read.extend(ids.tolist())
        return images(self, ids)

    monkeypatch.setattr(Dataset, "images", counted)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 16 * 500)
    compute(dataset, None)
    assert read == list(range(NUM_EXAMPLES))


def test_progress_counts_every_example_in_every_state(
    dataset: Dataset, batch_norm_images: Tensor
) -> None:
    reports: list[tuple[int, int]] = []
    compute(dataset, batch_norm_images, reports=reports)
    assert reports[-1] == (7 * NUM_EXAMPLES, 7 * NUM_EXAMPLES)
    assert reports == sorted(reports)
    # The estimate of each state's statistics is no silent time: 2 parts of 10 images.
    assert len(reports) == 7 * (3 + 2)


def test_state_with_outputs_that_are_not_finite_is_named(dataset: Dataset) -> None:
    bad = weights_of(21)
    bad["5.bias"] = torch.full_like(bad["5.bias"], math.inf)
    learners = (STATES.learners[0], (STATES.learners[1][0], lambda: bad))
    with pytest.raises(
        SignalsError, match=r"as state 2 of 2 of learner 1 are not finite.*ids 0, 1"
    ):
        compute(dataset, None, states=States(STATES.initial, learners))


def test_two_learners_disagree_on_their_own_examples_too(dataset: Dataset) -> None:
    pair = States(STATES.initial, STATES.learners[:2])
    everyone = compute(dataset, None, states=pair).disagreement_N
    assert bool((everyone > 0).all())
    alone = States(STATES.initial, STATES.learners[:1])
    assert not compute(dataset, None, states=alone).disagreement_N.any()


def test_margins_by_hand() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0], [3.0, 3.0, 0.0]])
    assert margins_of(logits, torch.tensor([1, 0, 0])).tolist() == [2.0, -3.0, 0.0]


def test_a_single_class_is_always_right() -> None:
    assert margins_of(torch.tensor([[-3.0], [0.0]]), torch.tensor([0, 0])).tolist() == [1.0, 1.0]
