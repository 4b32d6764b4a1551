import pytest
import torch
from torch import Tensor

from lipt.core.selection.pairs import centred, proximity, represented, scaled_cosine, with_weights
from lipt.core.selection.vectors import Space, Vectors, gradients_of
from lipt.core.signals.compute import errors_of
from tests.core.selection.builders import in_space, random_signals, written_out

EVERY = slice(None)


def distances(vectors: Vectors) -> Tensor:
    return -proximity(vectors).block(EVERY, EVERY)


@pytest.mark.parametrize("space", ["features", "gradients"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_similarities_equal_those_of_explicit_vectors(space: Space, *, has_bias: bool) -> None:
    signals = random_signals(9, 5, 7, has_bias=has_bias)
    vectors, vectors_NG = in_space(signals, space), written_out(signals, space)
    unit_NG = torch.nn.functional.normalize(vectors_NG)
    near, alike = proximity(vectors), scaled_cosine(vectors)
    expected = {
        near: -torch.cdist(vectors_NG, vectors_NG, compute_mode="donot_use_mm_for_euclid_dist"),
        alike: (1 + unit_NG @ unit_NG.T) / 2,
    }
    rows, columns = torch.tensor([4, 0, 8]), slice(2, 7)
    for similarity, expected_NN in expected.items():
        found_nm = similarity.block(rows, columns)
        assert found_nm.dtype == torch.float32
        torch.testing.assert_close(
            found_nm.double(), expected_NN[rows][:, columns], rtol=1e-4, atol=1e-4
        )
        assert torch.equal(similarity.take(rows).block(EVERY, EVERY), similarity.block(rows, rows))
        assert expected_NN.min() >= similarity.lowest
        assert expected_NN.max() <= similarity.highest + 1e-12


@pytest.mark.parametrize("num_features", [3, 64, 511])
def test_equal_gradients_have_distance_zero_and_cosine_one(num_features: int) -> None:
    # The rounding of a squared distance of 0 would be a distance of some 1e-3 of the norm.
    twice = gradients_of(random_signals(40, 10, num_features))[torch.arange(40).repeat(2)]
    alike_NN = scaled_cosine(twice).block(EVERY, EVERY)
    same_NN = torch.eye(40, dtype=torch.bool).repeat(2, 2)
    assert torch.equal(distances(twice) == 0, same_NN)
    assert (alike_NN[same_NN] == 1).all()


def test_zero_gradients_and_opposite_directions() -> None:
    vectors = Vectors(torch.ones(2, 1), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), bias=1.0)
    assert scaled_cosine(vectors).block(EVERY, EVERY).tolist() == [[0.5, 0.5], [0.5, 1.0]]
    # |e| sqrt(|h|^2 + 1)
    assert distances(vectors)[0].tolist() == pytest.approx([0.0, 2**0.5])
    features_ND = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    vectors = Vectors(torch.cat([features_ND, -3 * features_ND]))
    assert float(scaled_cosine(vectors).block(slice(200), slice(200, 400)).min()) == 0.0


def oracle_distances(vectors: Vectors) -> Tensor:
    """From differences of the factors in float64: no digit is lost, however near they are."""
    features_NF = torch.cat(
        [vectors.features_ND.double(), torch.full((len(vectors), 1), vectors.bias).double()], dim=1
    )
    errors_NC = vectors.outer_NC.double()
    apart_NNF = features_NF[:, None] - features_NF
    differences_NNC = errors_NC[:, None] - errors_NC
    # (e_i - e_j) (x) f_i + e_j (x) (f_i - f_j), written out.
    gradients = torch.einsum("ijc,if->ijcf", differences_NNC, features_NF)
    gradients += torch.einsum("jc,ijf->ijcf", errors_NC, apart_NNF)
    return gradients.flatten(2).norm(dim=-1)


def test_distances_of_confident_predictions_are_exact() -> None:
    # Most errors are next to nothing, some are not: the mean error is far from all.
    generator = torch.Generator().manual_seed(0)
    logits_NC = torch.randn(60, 4, generator=generator)
    logits_NC[:, 0] += 14
    logits_NC[::12, 0] -= 14
    errors_NC = errors_of(logits_NC, torch.zeros(60, dtype=torch.int64))
    vectors = Vectors(torch.rand(60, 5, generator=generator), errors_NC, bias=1.0)
    expected = oracle_distances(vectors)
    assert expected.median() < 1e-4 * expected.max()
    torch.testing.assert_close(distances(vectors).double(), expected, rtol=1e-2, atol=0.0)


def test_similarities_are_weighted_by_representative() -> None:
    plain = scaled_cosine(gradients_of(random_signals(6)))
    weights_N = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.0, 0.25])
    weighed = with_weights(plain, weights_N)
    rows = torch.tensor([1, 5])
    expected = torch.tensor([[2.0], [0.25]]) * plain.block(rows, EVERY)
    assert torch.equal(represented(weighed, rows, EVERY), expected)
    assert torch.equal(represented(weighed.take(rows), EVERY, EVERY), expected[:, rows])
    # What pairs are to each other stays.
    assert torch.equal(weighed.block(rows, EVERY), plain.block(rows, EVERY))
    assert (weighed.lowest, weighed.highest) == (0.0, 2.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_distances_by_hand(dtype: torch.dtype) -> None:
    # 1000 and the powers of two up to it have all their digits in half precision.
    factor = torch.tensor([[1000.0, 0.0], [1000.0, 4.0], [1003.0, 4.0]], dtype=dtype)
    rows = centred(factor)
    # The middle one: 4 and 3 from the others, which are 5 apart.
    assert rows.squares_N.tolist() == [16.0, 0.0, 9.0]
    expected = [[0.0, 16.0, 25.0], [16.0, 0.0, 9.0], [25.0, 9.0, 0.0]]
    assert rows.squared_distances(EVERY, EVERY).tolist() == expected
    assert rows.take(torch.tensor([2, 0])).squared_distances(EVERY, EVERY)[0, 1] == 25.0
    # Halves take no more room than they did.
    assert (rows.values_ND is factor) == (dtype == torch.float16)
    assert rows.rows(EVERY).dtype == torch.float32
