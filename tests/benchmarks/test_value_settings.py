import pytest
import torch

from benchmarks.value.settings import SETTINGS, Images, make

pytestmark = pytest.mark.slow

CLASSES = tuple(map(str, range(10)))


def clean(num_per_class: int = 200) -> Images:
    """Images of one gray each, as many of every class."""
    labels_N = torch.arange(10).repeat_interleave(num_per_class)
    grays_N = torch.arange(len(labels_N)) % 200 + 20
    images_NCHW = grays_N.to(torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4).contiguous()
    return Images(images_NCHW, labels_N, CLASSES)


@pytest.mark.parametrize("setting", SETTINGS)
def test_one_seed_gives_one_data_set(setting: str) -> None:
    first, again = make(setting, clean(), seed=3), make(setting, clean(), seed=3)
    assert torch.equal(first.images.images_NCHW, again.images.images_NCHW)
    assert torch.equal(first.images.labels_N, again.images.labels_N)
    assert torch.equal(first.original_N, again.original_N)


def test_of_forty_percent_random_labels_a_tenth_is_right_by_chance() -> None:
    wrong = float(make("noise40", clean(2000), seed=0).wrong_N.double().mean())
    # 20,000 draws around 0.4 * 0.9: the deviation is 0.0034.
    assert wrong == pytest.approx(0.36, abs=0.014)


def test_asymmetric_noise_gives_the_following_class_and_no_other() -> None:
    data = make("asymmetric40", clean(), seed=0)
    assert 0.33 < float(data.wrong_N.double().mean()) < 0.47
    following_N = (data.true_N + 1) % 10
    assert torch.equal(data.images.labels_N[data.wrong_N], following_N[data.wrong_N])


def test_the_tail_falls_to_a_fiftieth_class_by_class() -> None:
    counts = sorted(make("tail50", clean(), seed=0).images.labels_N.bincount().tolist())
    expected = sorted(round(200 * 50 ** (-place / 9)) for place in range(10))
    assert counts == expected
    assert counts[-1] == 200
    assert counts[0] == 4


def test_copies_look_like_their_original_and_have_its_label() -> None:
    data = make("duplicates", clean(), seed=0)
    assert len(data.images) == 800
    assert int(data.ideal_N.sum()) == 200 == len(data.original_N.unique())
    assert not data.wrong_N.any()
    means_N = data.images.images_NCHW.double().mean(dim=(1, 2, 3))
    grays_N = clean().images_NCHW[data.original_N].double().mean(dim=(1, 2, 3))
    # A tenth brighter or darker at most, and noise of 4 levels over 16 pixels.
    assert ((means_N - grays_N).abs() <= 0.1 * grays_N + 5).all()
    # Few images have most copies.
    counts = data.original_N.unique(return_counts=True)[1]
    assert int(counts.max()) > 50
    assert int((counts == 1).sum()) > 20
