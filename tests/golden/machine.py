"""Machine: the key under which results are kept that depend on the CPU and on torch's version.

Two machines share a key if torch has the same version and CPU capability, and if a probe of some
kernels gives the same bits. The probe's inputs are fixed and exact. Numba is not part of the key:
the results with and without it are equal.
"""

import importlib.util
import platform
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.computation import computation
from tests.golden.record import digest

_PROBE_DIGITS = 8


def machine_key() -> str:
    with computation(1):
        probed = digest(list(_probe()))[:_PROBE_DIGITS]
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, probe {probed}"


def describe_machine() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numba": "installed" if importlib.util.find_spec("numba") else "not installed",
    }


def pattern(*shape: int, seed: int = 0) -> Tensor:
    """Numbers in [-1, 1] without a generator: float32, the same bits everywhere."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count, dtype=torch.int64) + 31 * seed + 1) * 7919 % 1013
    return ((numbers - 506).double() / 506).float().reshape(shape)


def _probe() -> Iterator[Tensor | bytes]:
    yield from _convolution()
    yield from _linear_algebra()
    x = pattern(64, 37)
    yield from (x.softmax(dim=-1), x.exp(), x.abs().log1p(), x.std(dim=0), x.norm(dim=1))
    generator = torch.Generator().manual_seed(0)
    yield from (torch.randn(n, generator=generator) for n in (7, 100))
    yield torch.randperm(100, generator=generator)
    images = pattern(4, 3, 19, 19)
    yield functional.interpolate(images, size=(32, 32), mode="bilinear", antialias=True)
    yield functional.interpolate(images, size=(8, 8), mode="bilinear", antialias=True)
    # Two encodings of weights contain streams of zlib's.
    squeeze = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    yield squeeze.compress(bytes(range(64)) * 40) + squeeze.flush()


def _convolution() -> Iterator[Tensor]:
    for channels, size in ((3, 32), (16, 8)):
        images = pattern(16, channels, size, size).requires_grad_()
        weights = pattern(16, channels, 3, 3, seed=1).requires_grad_()
        out = functional.conv2d(images, weights, stride=2, padding=1)
        normed = functional.batch_norm(out, None, None, training=True)
        normed.square().mean().backward()
        yield from (out, normed)
        yield from (grad for grad in (images.grad, weights.grad) if grad is not None)


def _linear_algebra() -> Iterator[Tensor]:
    for dtype in (torch.float32, torch.float64):
        a, b = (pattern(150, 150, seed=seed).to(dtype) for seed in (2, 3))
        yield from (a @ b, a @ b[0], torch.cdist(a[:40], b[:40]))
        definite = a @ a.T + 150 * torch.eye(150, dtype=dtype)
        yield from torch.linalg.eigh(definite)
        yield torch.cholesky_solve(b, torch.linalg.cholesky(definite))


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
