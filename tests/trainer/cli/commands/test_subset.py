import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import Dataset, open_dataset
from lipt.common.weights.files import pack
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2
from tests.relay import Relay
from tests.service import READY, Service
from tests.trainer.made_up import described, made_up_subset


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".json", ".parquet"])
def test_a_subset_is_written(relay: Relay, lipt: Any, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"subset{suffix}"
    result = lipt(
        *("subset", "get", "--run", READY, "--strategy", "grand", "--budget", "20"),
        *("--no-balanced", "--option", "parameters=last_layer", "--out", str(out)),
        *("--proxy", "soup"),
    )
    assert result.exit_code == 0, result.stderr
    subset = Subset.load(out)
    told = f"{out}: 20 examples by grand of run {READY}, digest {subset.digest}\n"
    manifest = f"{tmp_path / 'subset.manifest.json'}: its manifest\n" if suffix == ".csv" else ""
    assert result.stdout == told + manifest
    assert len(subset) == 20
    assert subset.manifest["run_name"] == READY
    (request,) = relay.requests_of(subset_pb2.GetSubsetRequest)
    assert request.HasField("balanced")
    assert not request.balanced
    assert dict(request.options) == {"parameters": "last_layer"}
    assert request.proxy == "soup"


def test_an_early_stop_is_a_line_of_its_own(relay: Relay, lipt: Any, tmp_path: Path) -> None:
    stopped = described(manifest_json='{"stopped_early": "nothing is left to gain."}')
    relay.next("GetSubset", stopped)
    out = tmp_path / "subset.npy"
    result = lipt("subset", "get", "-s", "uniform", "--budget", "3", "--out", str(out))
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{out}: 3 examples by uniform, digest ")
    assert second == "uniform stopped early: nothing is left to gain."


def test_own_features_are_uploaded(
    service: Service, relay: Relay, lipt: Any, tmp_path: Path
) -> None:
    content = pack({"features": torch.arange(1442.0)[:, None]})
    path = tmp_path / "features.safetensors"
    path.write_bytes(content)
    ask = ("subset", "get", "-s", "herding", "-k", "20", "--features", str(path))
    out = ("--out", str(tmp_path / "s.npy"))
    # Such a choice may do without labels.
    result = lipt(*ask, "--labels", "none", *out)
    assert result.exit_code == 0, result.stderr
    (request,) = relay.requests_of(subset_pb2.GetSubsetRequest)
    assert service.blob(request.features.sha256) == content
    assert request.labels == "none"


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_subsets_examples_are_written_out(
    lipt: Any, digits: Dataset, tmp_path: Path, form: str
) -> None:
    subset = made_up_subset(range(0, 1200, 3), fingerprint=digits.fingerprint)
    file, out = subset.save(tmp_path / "subset.npy"), tmp_path / "out"
    arguments = ("--data", "digits-train", "--to", form, "--examples-per-shard", "150")
    result = lipt("subset", "export", str(file), *arguments, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: 400 examples in 3 files of ")
    assert result.stdout.endswith(f"digest {subset.digest}\n")
    again = open_dataset(f"{form}:{out}")
    assert again.labels_N.tolist() == digits.labels_N[0:1200:3].tolist()


@pytest.mark.parametrize(("name", "kind"), [("initial", "initial"), ("theta_p", "pretrained")])
def test_weights_are_written(
    service: Service, lipt: Any, tmp_path: Path, name: str, kind: str
) -> None:
    expected: Any = getattr(service.ready, f"{kind}_weights")
    out = tmp_path / "w.safetensors"
    command = ("weights", "get", "--run", READY, "--kind", name, "--out", str(out))
    result = lipt(*command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: ")
    assert result.stdout.endswith(f"B, sha256 {expected.sha256}\n")
    assert hashlib.sha256(out.read_bytes()).hexdigest() == expected.sha256
    assert json.loads(lipt(*command, "--json").stdout) == {
        "path": str(out),
        "kind": kind,
        "sha256": expected.sha256,
        "size_bytes": expected.size_bytes,
    }
