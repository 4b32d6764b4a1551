import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import SignalsError
from lipt.common.tensor_files import Weights
from lipt.core.passes import Batches
from lipt.core.signals import dynamics as module
from lipt.core.signals.dynamics import (
    Dynamics,
    States,
    compute_dynamics,
    counted_learners,
    deviation_over_moments,
    mean_over_learners,
    mean_over_moments,
)
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import to_model_input
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network


def test_theta_star_counts_once_and_the_own_learner_never() -> None:
    # 4 at theta*, then 1, 2 by one learner and 3, 10 by the other: 20 / 5 and not 24 / 6. Without
    # the first learner, 4 + 3 + 10 by three; without the second 4 + 1 + 2.
    values_NLT = torch.tensor([[[4.0, 1.0, 2.0], [4.0, 3.0, 10.0]]]).expand(3, -1, -1)
    counted_NL = counted_learners(torch.tensor([0, 1, -1], dtype=torch.int16), 2)
    assert counted_NL.tolist() == [[False, True], [True, False], [True, True]]
    means_N = mean_over_moments(values_NLT, counted_NL)
    assert means_N.tolist() == pytest.approx([17 / 3, 7 / 3, 4.0])
    # 0 + 9 + 4 + 1 + 36 = 50
    deviations_N = deviation_over_moments(values_NLT, counted_NL, means_N)
    assert float(deviations_N[2]) == pytest.approx(math.sqrt(10))
    assert mean_over_learners(values_NLT[:, :, 2], counted_NL).tolist() == [10.0, 2.0, 6.0]
    own_learner_N = torch.tensor([0, -1], dtype=torch.int16)
    assert counted_learners(own_learner_N, 1).tolist() == [[True], [True]]
    # Two are needed, and only one is left of two; of three, two are.
    assert counted_learners(own_learner_N, 2, num_needed=2).tolist() == [[True] * 2] * 2
    of_three_NL = counted_learners(own_learner_N, 3, num_needed=2)
    assert of_three_NL.tolist() == [[False, True, True], [True, True, True]]


def test_equal_examples_have_equal_bits_at_any_position() -> None:
    generator = torch.Generator().manual_seed(0)
    one_LT, own_learner_N = torch.randn(7, 4, generator=generator), torch.tensor([-1, 3])
    # Alone and among many: sums over a longer axis may be taken in another order.
    for own in own_learner_N.tolist():
        alone = mean_over_moments(one_LT[None], counted_learners(torch.tensor([own]), 7))
        many_N = torch.full((1001,), own)
        counted_NL = counted_learners(many_N, 7)
        values_NLT = one_LT.expand(1001, -1, -1).clone()
        values_NLT[::2] = torch.randn(501, 7, 4, generator=generator)
        means_N = mean_over_moments(values_NLT, counted_NL)
        assert means_N[1::2].unique().tolist() == alone.tolist()
        deviations_N = deviation_over_moments(values_NLT, counted_NL, means_N)
        assert len(deviations_N[1::2].unique()) == 1


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
) -> Dynamics:
    batches = Batches(dataset, IMAGE, CPU, batch_size)
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


def test_streamed_reductions_equal_those_of_all_outputs(dataset: Dataset) -> None:
    dynamics = compute(dataset, None)
    assert dynamics.probabilities_NLT.shape == (NUM_EXAMPLES, 3, 3)
    dtypes = {name: values.dtype for name, values in vars(dynamics).items()}
    assert dtypes.pop("own_learner_N") == torch.int16
    assert set(dtypes.values()) == {torch.float32}
    close(dynamics, direct(dataset, None))


def test_each_state_has_its_own_statistics(dataset: Dataset, batch_norm_images: Tensor) -> None:
    # One part, so that the variance is that of all images.
    dynamics = compute(dataset, batch_norm_images, batch_size=20)
    close(dynamics, direct(dataset, batch_norm_images))
    assert not torch.allclose(dynamics.margins_NLT, compute(dataset, None).margins_NLT)


@pytest.mark.parametrize("block_bytes", [1, 16 * 500, 2 * 16 * 500])
def test_block_size_changes_no_bit(
    dataset: Dataset, batch_norm_images: Tensor, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compute(dataset, batch_norm_images)
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    parts = compute(dataset, batch_norm_images)
    for name, values in vars(whole).items():
        assert torch.equal(values, getattr(parts, name)), name


def test_state_with_outputs_that_are_not_finite_is_named(dataset: Dataset) -> None:
    bad = weights_of(21)
    bad["5.bias"] = torch.full_like(bad["5.bias"], math.inf)
    learners = (STATES.learners[0], (STATES.learners[1][0], lambda: bad))
    with pytest.raises(
        SignalsError, match=r"as state 2 of 2 of learner 1 are not finite.*ids 0, 1"
    ):
        compute(dataset, None, states=States(STATES.initial, learners))
