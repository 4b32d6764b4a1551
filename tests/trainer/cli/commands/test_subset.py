"""`lipt subset get` and `lipt subset export`."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lipt.common.data import Dataset, open_dataset
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2
from tests.trainer.made_up import made_up_subset, subset_description, subset_examples

DIGEST = hashlib.sha256(struct.pack("<2q2f", 2, 5, 1.0, 0.5)).hexdigest()


def subset_script() -> list[Any]:
    described = subset_description(DIGEST, num_examples=2, manifest_json='{"seed": 0}')
    return [described, subset_examples([2, 5], [1.0, 0.5])]


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".json", ".parquet"])
def test_a_subset_is_written(fake: Any, lipt: Any, tmp_path: Path, suffix: str) -> None:
    script = subset_script()
    manifest = {"seed": 0, "run_name": "mine", "proxy": {"proxy": "ridge:patches"}}
    script[0].subset.manifest_json = json.dumps(manifest)
    fake.subset_scripts = [script]
    out = tmp_path / f"subset{suffix}"
    result = lipt(
        *("subset", "get", "--run", "mine", "--strategy", "grand", "--budget", "2"),
        *("--no-balanced", "--option", "norm=full", "--out", str(out)),
        *("--proxy", "ridge:patches"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out}: 2 examples by grand of run mine, digest {DIGEST}\n" + (
        f"{tmp_path / 'subset.manifest.json'}: its manifest\n" if suffix == ".csv" else ""
    )
    subset = Subset.load(out)
    assert subset.indices.tolist() == [2, 5]
    assert subset.manifest == manifest
    (request,) = fake.requests
    assert request.HasField("balanced")
    assert not request.balanced
    assert dict(request.options) == {"norm": "full"}
    assert request.proxy == "ridge:patches"


def test_a_subset_in_json_has_stable_keys(fake: Any, lipt: Any, tmp_path: Path) -> None:
    fake.subset_scripts = [subset_script()]
    out = tmp_path / "subset.npy"
    result = lipt("subset", "get", "--fraction", "0.1", "--out", str(out), "--json")
    assert json.loads(result.stdout) == {
        "path": str(out),
        "num_examples": 2,
        "strategy": "grand",
        "digest": DIGEST,
        "fingerprint": "f" * 64,
        "manifest": {"seed": 0},
    }


def test_a_preset_is_asked_for_by_name(fake: Any, lipt: Any, tmp_path: Path) -> None:
    script = subset_script()
    script[0].subset.manifest_json = '{"preset": "paper"}'
    fake.subset_scripts = [script]
    out = str(tmp_path / "subset.npy")
    result = lipt("subset", "get", "-s", "ccs", "-k", "2", "--preset", "paper", "--out", out)
    assert result.exit_code == 0, result.stderr
    (request,) = fake.requests
    assert (request.strategy, request.preset) == ("ccs", "paper")


def test_a_choice_of_what_to_label_is_asked_for(fake: Any, lipt: Any, tmp_path: Path) -> None:
    script = subset_script()
    script[0].subset.manifest_json = '{"labels": "none"}'
    fake.subset_scripts = [script, subset_script()]
    ask = ("subset", "get", "-s", "kcenter", "-k", "2", "--out", str(tmp_path / "subset.npy"))
    result = lipt(*ask, "--labels", "none")
    assert result.exit_code == 0, result.stderr
    assert fake.requests[0].labels == "none"
    assert lipt(*ask).exit_code == 0
    assert fake.requests[1].labels in ("", "given")
    refused = lipt(*ask, "--labels", "some")
    assert refused.exit_code == 2
    assert "'some'" in refused.stderr


def test_an_early_stop_is_a_line_of_its_own(fake: Any, lipt: Any, tmp_path: Path) -> None:
    script = subset_script()
    script[0].subset.manifest_json = '{"stopped_early": "nothing is left to gain."}'
    fake.subset_scripts = [script]
    out = tmp_path / "subset.npy"
    result = lipt("subset", "get", "--budget", "3", "--out", str(out))
    assert result.stdout.splitlines() == [
        f"{out}: 2 examples by grand, digest {DIGEST}",
        "grand stopped early: nothing is left to gain.",
    ]


def test_own_features_are_uploaded(fake: Any, lipt: Any, tmp_path: Path) -> None:
    content = struct.pack("<Q", 2) + b"{}"
    path = tmp_path / "features.safetensors"
    path.write_bytes(content)
    fake.subset_scripts = [subset_script()]
    out = str(tmp_path / "s.npy")
    result = lipt("subset", "get", "--budget", "2", "--features", str(path), "--out", out)
    assert result.exit_code == 0, result.stderr
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    assert fake.blobs[request.features.sha256] == content
    path.write_bytes(b"\x80\x04}\x94.")
    result = lipt("subset", "get", "--budget", "2", "--features", str(path), "--out", out)
    assert result.exit_code == 1
    assert "'features': N x d" in result.stderr


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


def test_a_folder_that_is_there_already_is_named(
    lipt: Any, digits: Dataset, tmp_path: Path
) -> None:
    file = made_up_subset([1], fingerprint=digits.fingerprint).save(tmp_path / "subset.npy")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    result = lipt(
        *("subset", "export", str(file), "--data", "digits-train", "--to", "parquet"),
        *("--out", str(tmp_path / "out")),
    )
    assert result.exit_code == 1
    assert f"{tmp_path / 'out'} is there already" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
