"""Backbone: torchvision's network with weights from a file of the operator's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.models.models import build_torchvision
from lipt.core.proxies.backbone import backbone_identity, load_backbone

CPU = torch.device("cpu")


def network(num_classes: int = 1000) -> nn.Module:
    torch.manual_seed(0)
    return build_torchvision("resnet18", num_classes=num_classes, in_channels=3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(network().state_dict(), path)
    return path


def test_both_kinds_of_files_are_the_same_network(saved: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "resnet18.pth"
    torch.save(network().state_dict(), pickled)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    first = load_backbone(f"torchvision:resnet18@{saved}", CPU)
    second = load_backbone(f"torchvision:resnet18@{pickled}", CPU)
    assert first.identity != second.identity
    assert torch.equal(first(images), second(images))
    # At 64 pixels a side the last map is 2x2 of 512 channels.
    assert first(images).shape == (2, 512 + 4 * 512)


def test_grayscale_images_are_three_equal_channels(saved: Path) -> None:
    backbone = load_backbone(f"torchvision:resnet18@{saved}", CPU)
    gray = torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(backbone(gray), backbone(gray.expand(-1, 3, -1, -1)))


def test_a_network_of_other_classes_is_taken_by_its_head(tmp_path: Path) -> None:
    path = tmp_path / "seven.safetensors"
    save_file(network(7).state_dict(), path)
    backbone = load_backbone(f"torchvision:resnet18@{path}", CPU)
    assert backbone(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1, 2560)


def test_its_identity_is_the_network_and_the_content_wherever_it_lies(tmp_path: Path) -> None:
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


def test_a_loaded_network_has_the_identity_of_its_setting(saved: Path) -> None:
    spec = f"torchvision:resnet18@{saved}"
    assert load_backbone(spec, CPU).identity == backbone_identity(spec)


@pytest.mark.parametrize("spec", ["resnet18", "torchvision:resnet18", "torchvision:resnet18@"])
def test_another_form_is_refused(spec: str) -> None:
    for read in (backbone_identity, partial(load_backbone, device=CPU)):
        with pytest.raises(ConfigError, match="is not torchvision:NAME@FILE"):
            read(spec)


def test_what_is_not_there_or_another_networks_is_refused(saved: Path, tmp_path: Path) -> None:
    missing = f"torchvision:resnet18@{tmp_path / 'none.safetensors'}"
    for read in (backbone_identity, partial(load_backbone, device=CPU)):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(missing)
    with pytest.raises(ConfigError, match="does not hold the weights of torchvision's resnet34"):
        load_backbone(f"torchvision:resnet34@{saved}", CPU)
    with pytest.raises(UnknownNameError, match="resnet18"):
        load_backbone(f"torchvision:resnet81@{saved}", CPU)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "whole_model.pth"
    torch.save(network(), path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backbone(f"torchvision:resnet18@{path}", CPU)
