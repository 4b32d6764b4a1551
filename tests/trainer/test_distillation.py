import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from lipt.common.errors import ConfigError, DataError
from lipt.data.dataset import Dataset, input_format
from lipt.data.inputs.specs import ImageFormat
from lipt.data.loading import open_dataset
from lipt.trainer.distillation import (
    Distillation,
    Networks,
    RealExamples,
    SyntheticSet,
    distance,
    distill,
    gradients,
    make_stage,
)
from tests.in_memory import in_memory

CPU = torch.device("cpu")


def small(**changes: Any) -> Distillation:
    settings = {
        "per_class": 2,
        "stages": 2,
        "networks": 2,
        "matches": 2,
        "steps_between": 1,
        "steps_before": 2,
        "real_batch": 8,
        "augmentation": "crop",
        "padding": 1,
    }
    return Distillation.model_validate(settings | changes)


def dropping_model(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


@pytest.fixture(scope="session")
def networks_of(digits: Dataset) -> Callable[..., Networks]:
    image = input_format(digits, torch.arange(len(digits)), 0)
    assert isinstance(image, ImageFormat)

    def make(settings: Distillation, model: str = "linear") -> Networks:
        return Networks(model, image, 10, settings, CPU)

    return make


def made(
    digits: Dataset, networks: Any, synthetic: SyntheticSet | None = None, told: Any = None
) -> SyntheticSet:
    real = RealExamples.of(digits, None, at_least=1)
    synthetic = synthetic or SyntheticSet.empty((1, 8, 8), digits.class_names)
    return make_stage(synthetic, real, networks, told or (lambda *_: None))


def test_matching_reduces_the_gradients_distance(digits: Dataset, networks_of: Any) -> None:
    # One network and no training: all matches are at one state, with all of the real images.
    settings = small(networks=1, matches=30, steps_between=0, real_batch=999, augmentation="none")
    lines: list[str] = []
    made(digits, networks_of(settings), told=lines.append)
    distances = [float(line.split()[-1]) for line in lines]
    assert len(distances) == 30
    assert distances[-1] < distances[0] / 2


def test_earlier_stages_are_unchanged(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small())
    first = made(digits, networks)
    kept = first.images_NCHW.clone()
    second = made(digits, networks, first)
    assert torch.equal(first.images_NCHW, kept)
    assert torch.equal(second.images_NCHW[:10], kept)
    assert not torch.equal(second.images_NCHW[10:], kept)
    assert second.stages_N.tolist() == [0] * 10 + [1] * 10


class KilledError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("model", ["linear", f"{__name__}:dropping_model"])
def test_a_killed_one_resumes_after_its_stage(digits: Dataset, tmp_path: Path, model: str) -> None:
    settings = small(per_class=3, stages=3)

    def run(name: str, report: Any = lambda _: None) -> SyntheticSet:
        return distill(
            digits, model, settings, tmp_path / name, allowed_modules=("tests",), report=report
        )

    whole = run("whole")

    def kill(line: str) -> None:
        if line.startswith("stage 2 of 3: match 3"):
            raise KilledError

    with pytest.raises(KilledError):
        run("cut", kill)
    assert SyntheticSet.load(tmp_path / "cut").num_stages == 1
    lines: list[str] = []
    resumed = run("cut", lines.append)
    assert lines[0].startswith("stage 2 of 3: match 1 of 4, distance ")
    assert resumed.digest == whole.digest
    lines.clear()
    assert run("cut", lines.append).digest == whole.digest
    assert lines == []


def test_the_manifest_lists_each_stage(digits: Dataset, tmp_path: Path, subset_of: Any) -> None:
    later = subset_of(digits, range(0, len(digits), 4))
    for subset, numbers in ((None, [1442, len(later)]), (later, [len(later)] * 2)):
        out = tmp_path / str(numbers[0])
        synthetic = distill(digits, "linear", small(), out, subset=subset, later=later)
        manifest = json.loads((out / "manifest.json").read_text())
        assert [stage["real_images"] for stage in manifest["stages"]] == numbers
        assert (manifest["digest"], manifest["source"]) == (synthetic.digest, "digits-train")
        assert manifest["identity"]["settings"]["per_class"] == 2
        assert manifest["identity"]["data"] == digits.fingerprint


@pytest.mark.parametrize(
    ("changes", "model", "complaint"),
    [
        ({"seed": 1}, "linear", "its settings.seed is 0, now it is 1. Name another folder"),
        ({}, "mlp", "its model is 'linear', now it is 'mlp'"),
    ],
)
def test_another_distillations_folder_is_refused(
    digits: Dataset, tmp_path: Path, changes: dict[str, Any], model: str, complaint: str
) -> None:
    distill(digits, "linear", small(), tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        distill(digits, model, small(**changes), tmp_path)


def of(points: list[list[float]], weights: list[float] | None = None) -> tuple[Tensor, ...]:
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    points_B = torch.tensor(points)
    weights_B = torch.ones(len(points)) if weights is None else torch.tensor(weights)
    return gradients(model, points_B, 0, weights_B)


def test_the_last_layer_s_gradient_is_error_times_feature() -> None:
    # Softmax of zeros is a half each: the errors are -1/2 of the class and 1/2 of the other.
    (found,) = of([[4.0, 0.0]])
    assert found.tolist() == [[-2.0, 0.0], [2.0, 0.0]]
    assert torch.equal(of([[4.0, 0.0], [0.0, 9.0]], [1.0, 0.0])[0], of([[4.0, 0.0]])[0])
    assert of([[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])[0][0].tolist() == [-1.5, -1.0]


@pytest.mark.parametrize(
    ("synthetic", "expected"),
    [
        ([1.0, 0.0], 0.0),
        ([3.0, 0.0], 0.0),  # the length does not count
        ([0.0, 1.0], 2.0),  # 1 for each of two rows
        ([-1.0, 0.0], 4.0),
    ],
)
def test_the_distance_is_one_minus_each_cosine(synthetic: list[float], expected: float) -> None:
    assert distance(of([[1.0, 0.0]]), of([synthetic])).item() == pytest.approx(expected)


def test_all_images_of_a_match_are_shifted_and_mirrored_alike(networks_of: Any) -> None:
    networks = networks_of(small(augmentation="crop_flip", padding=2))
    images_BCHW = torch.rand(1, 1, 8, 8).expand(3, -1, -1, -1)
    found = [
        networks.augmented(images_BCHW, torch.Generator().manual_seed(seed), alike=True)
        for seed in range(5)
    ]
    assert all(torch.equal(one[0], one[2]) for one in found)
    assert len({one[0].sum().item() for one in found}) > 1
    each = networks.augmented(images_BCHW, torch.Generator().manual_seed(1), alike=False)
    assert not torch.equal(each[0], each[2])
    fitting = networks_of(small(augmentation="auto"))
    assert fitting.augmented(images_BCHW, torch.Generator(), alike=False) is images_BCHW


def stages(digits: Dataset, number: int) -> SyntheticSet:
    synthetic = SyntheticSet.empty((1, 8, 8), digits.class_names)
    for stage in range(number):
        ids = [int((digits.labels_N == label).nonzero()[stage]) for label in range(10)]
        synthetic = synthetic.extended(digits.images(torch.tensor(ids)), torch.arange(10))
    return synthetic


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_networks_are_reused_between_stages(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small(per_class=3, stages=3))
    synthetic = stages(digits, 2)
    entering = [weights(networks.enter(stage, 0, synthetic)) for stage in range(3)]
    assert torch.equal(entering[0], weights(networks.untrained(0)))
    assert not torch.equal(entering[1], entering[0])
    assert not torch.equal(entering[2], entering[1])
    # The second stage's images have no say on how a network comes out of the first.
    assert torch.equal(weights(networks.enter(1, 0, stages(digits, 1))), entering[1])
    assert not torch.equal(weights(networks.untrained(1)), entering[0])


def test_a_model_with_batch_norm_is_refused(networks_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"resnet8 has batch norm: .* such as convnet"):
        networks_of(small(), "resnet8").untrained(0)


def made_up(labels: list[int]) -> Dataset:
    """Images of one pixel, as bright as their row's number."""
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    return in_memory("made up", ("no", "yes"), torch.tensor(labels), "f" * 64, images)


def test_a_subset_gives_its_examples_and_their_weights(subset_of: Any) -> None:
    data = made_up([1, 0, 1, 0, 0])
    real = RealExamples.of(data, subset_of(data, [0, 3, 4], [1.0, 0.5, 0.0]), at_least=1)
    # What has no weight gives no gradient.
    assert [ids_M.tolist() for ids_M in real.ids] == [[3], [0]]
    assert real.weights_N.tolist() == [1, 0, 0, 0.5, 0]
    real = RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=1)
    assert sorted(real.draw(0, 10, torch.Generator()).tolist()) == [1, 3, 4]
    assert len(set(real.draw(0, 2, torch.Generator()).tolist())) == 2
    with pytest.raises(DataError, match=r"'yes' of made up has 2 images to distil 3 from"):
        RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=3)
    with pytest.raises(DataError, match="only images with one class each are distilled"):
        RealExamples.of(open_dataset("wine"), None, at_least=1)


def two_stages() -> SyntheticSet:
    """Two classes with an image of one pixel in each of two stages: 1 and 2, then 3 and 4."""
    synthetic = SyntheticSet.empty((1, 1, 1), ("no", "yes"))
    for brightness in (1, 3):
        images = torch.tensor([brightness, brightness + 1], dtype=torch.uint8).view(2, 1, 1, 1)
        synthetic = synthetic.extended(images, torch.tensor([0, 1]))
    return synthetic


def test_a_folder_holds_the_set_a_manifest_and_a_picture(tmp_path: Path) -> None:
    synthetic = two_stages()
    synthetic.save(tmp_path)
    found = SyntheticSet.load(tmp_path)
    assert found.digest == synthetic.digest
    assert found.class_names == ("no", "yes")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest == {"images": 4, "digest": synthetic.digest}
    # A row for each class, by stage from left to right.
    with Image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())) as sheet:
        assert np.asarray(sheet).tolist() == [[1, 3], [2, 4]]
