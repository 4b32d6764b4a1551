import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.common.process import _container_limits, notify_service_manager
from lipt.common.process.devices import is_out_of_memory, processor_name, resolve_device, versions


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fast GPU")


@pytest.mark.usefixtures("two_gpus")
def test_device_names_are_resolved_and_a_missing_gpu_is_refused() -> None:
    for spec in ("auto", "cuda", "cuda:0"):
        assert resolve_device(spec) == torch.device("cuda", 0)
    assert resolve_device(" CUDA:1 ") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError) as raised:
        resolve_device("cuda:3")
    assert str(raised.value) == (
        "this machine has no device 'cuda:3', but cpu, cuda:0 (Fast GPU), "
        "cuda:1 (Fast GPU). Choose one of these, or auto (CUDA if there is any, else the CPU)."
    )


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "spec", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:0", "cuda:0:1", "meta"]
)
def test_an_invalid_device_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"no device .*, but cpu"):
        resolve_device(spec)


def test_versions_list_everything_that_results_depend_on() -> None:
    found = versions()
    assert set(found) == {"python", "lipt", "torch", "torchvision"}
    assert found["python"] == platform.python_version()
    assert torch.__version__.startswith(found["torch"])
    # As long as the contract takes.
    assert 0 < len(processor_name()) <= 80


def limits(root: Path, own: str) -> list[int]:
    (root / "own").write_text(own)
    return list(_container_limits(root / "cgroup", root / "own"))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_limits_of_all_parent_cgroups_apply(tmp_path: Path) -> None:
    put(tmp_path / "cgroup/a/b/memory.max", "max\n")
    put(tmp_path / "cgroup/a/memory.max", "2000\n")
    put(tmp_path / "cgroup/memory.max", "3000\n")
    assert limits(tmp_path, "0::/a/b\n") == [2000, 3000]
    # A container finds its own group at the root.
    assert limits(tmp_path, "0::/docker/0123\n") == [3000]
    # The first version has other names.
    put(tmp_path / "cgroup/memory/a/memory.limit_in_bytes", "1000\n")
    assert limits(tmp_path, "9:cpu:/x\n4:hugetlb,memory:/a\n") == [1000]


# A process of its own, because a limit cannot be taken back.
LIMITED = """
import torch
from lipt.common.process.devices import prefer_as_oom_victim, is_out_of_memory, limit_memory

prefer_as_oom_victim()
print(open("/proc/self/oom_score_adj").read())
limit_memory(2 * 2**30)
limit_memory(4 * 2**30)
torch.empty(2**29, dtype=torch.uint8)
for take in (lambda: torch.empty(2**31, dtype=torch.uint8), lambda: bytearray(2**31)):
    try:
        take()
    except Exception as error:
        print(is_out_of_memory(error), type(error).__name__)
"""


def test_an_allocation_above_the_limit_is_refused_without_ending_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["500", "True", "RuntimeError", "True", "MemoryError"]


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (ConfigError("not enough memory"), False),
    ],
)
def test_out_of_memory_errors_are_recognized(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


@pytest.mark.parametrize("form", ["file", "name"])
def test_systemd_is_notified_in_one_datagram(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = str(tmp_path / "notify") if form == "file" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(written.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", written)
        notify_service_manager(READY="1", STATUS="serving 127.0.0.1:50051")
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving 127.0.0.1:50051"
