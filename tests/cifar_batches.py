"""CIFAR's files, small and made up."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets


def write_cifar(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    files: dict[str, list[int]],
    *,
    num_classes: int,
    meta: str,
) -> None:
    reader = getattr(datasets, name)
    fine = "fine_" if num_classes == 100 else ""
    folder.mkdir()
    written = []
    for seed, (file, labels) in enumerate(files.items(), start=1):
        data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), np.uint8)
        content = pickle.dumps({"data": data, f"{fine}labels": labels})
        (folder / file).write_bytes(content)
        written.append((file, hashlib.md5(content).hexdigest()))
    classes = [f"class {i}" for i in range(num_classes)]
    names = pickle.dumps({f"{fine}label_names": classes})
    (folder / meta).write_bytes(names)
    monkeypatch.setattr(reader, "train_list", written[:-1])
    monkeypatch.setattr(reader, "test_list", written[-1:])
    monkeypatch.setitem(reader.meta, "md5", hashlib.md5(names).hexdigest())
