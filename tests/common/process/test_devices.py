from __future__ import annotations

import platform

import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.common.process.devices import processor_name, resolve_device, versions


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fast GPU")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("spec", "device"),
    [
        ("auto", torch.device("cuda", 0)),
        ("cuda", torch.device("cuda", 0)),
        ("cuda:0", torch.device("cuda", 0)),
        (" CUDA:1 ", torch.device("cuda", 1)),
        ("cpu", torch.device("cpu")),
    ],
)
def test_names_give_devices(spec: str, device: torch.device) -> None:
    assert resolve_device(spec) == device


@pytest.mark.usefixtures("two_gpus")
def test_missing_gpu_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_device("cuda:3")
    assert str(raised.value) == (
        "device 'cuda:3' is not on this machine: this machine has cpu, cuda:0 (Fast GPU), "
        "cuda:1 (Fast GPU). Choose one of these, or auto (CUDA if there is any, else the CPU)."
    )


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("spec", ["cuda", "cuda:0"])
def test_cuda_on_a_machine_without_it_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="is not on this machine: this machine has cpu"):
        resolve_device(spec)


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    "spec", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:0", "cuda:0:1", "meta"]
)
def test_what_is_no_device_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="is not a device: this machine has cpu"):
        resolve_device(spec)


def test_versions_name_what_a_result_depends_on() -> None:
    found = versions()
    assert set(found) == {"python", "lipt", "torch", "torchvision"}
    assert found["python"] == platform.python_version()
    assert torch.__version__.startswith(found["torch"])


def test_the_processor_has_a_name_that_fits_the_contract() -> None:
    assert 0 < len(processor_name()) <= 80
    assert processor_name() == processor_name().strip()
