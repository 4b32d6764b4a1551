import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.tensor_files import pack
from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.diagnosis.sentences import facts
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import diagnosis_pb2, subset_pb2
from tests.relay import Relay
from tests.service import READY, Service
from tests.trainer.made_up import described, made_up_subset
from tests.trainer.made_up_diagnosis import diagnosis_answer, made_up_diagnosis, made_up_findings


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_the_subset_file_is_written(relay: Relay, lipt: Any, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"subset{suffix}"
    result = lipt(
        *("subset", "get", "--run", READY, "--strategy", "grand", "--budget", "20"),
        *("--no-balanced", "--option", "parameters=last_layer", "--out", str(out)),
        *("--proxy", "soup"),
    )
    assert result.exit_code == 0, result.stderr
    first, used, *note = result.stdout.splitlines()
    assert first.startswith(f"{out}: 20 examples by grand of run {READY}, digest ")
    assert used.startswith("judged by a model with its own head; 2 learners took part, merged into")
    if suffix == ".csv":
        assert note == ["a .csv has no manifest: lipt reads .npy and .json"]
    else:
        assert note == []
        subset = Subset.load(out)
        assert (len(subset), subset.manifest["run_name"]) == (20, READY)
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


def test_features_are_uploaded(service: Service, relay: Relay, lipt: Any, tmp_path: Path) -> None:
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


def test_examples_are_written_out(
    lipt: Any, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipt.trainer.subsets.data.EXAMPLES_PER_SHARD", 150)
    subset = made_up_subset(range(0, 1200, 3), fingerprint=digits.fingerprint)
    file, out = subset.save(tmp_path / "subset.npy"), tmp_path / "out"
    result = lipt("subset", "export", str(file), "--data", "digits-train", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: 400 examples in 3 files of ")
    assert result.stdout.endswith(f"digest {subset.digest}\n")
    again = open_dataset(f"webdataset:{out}")
    assert again.labels_N.tolist() == digits.labels_N[0:1200:3].tolist()


def test_rows_of_a_table_are_written_out(lipt: Any, tmp_path: Path) -> None:
    data, out = tmp_path / "pool.jsonl", tmp_path / "chosen.jsonl"
    lines = [json.dumps({"text": f"text {row}", "more": [row]}) for row in range(70)]
    data.write_text("\n".join(lines))
    name = f"jsonl:{data}?text=text"
    subset = made_up_subset([3, 60], fingerprint=open_dataset(name).fingerprint)
    file = subset.save(tmp_path / "subset.npy")
    result = lipt("subset", "export", str(file), "--data", name, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out}: 2 rows, digest {subset.digest}\n"
    assert out.read_text() == f"{lines[3]}\n{lines[60]}\n"


def test_an_adapter_is_written_of_runs_that_have_one(
    service: Service, lipt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("weights", "get", "--run", READY, "--adapter", "--out", str(tmp_path / "a"))
    refused = lipt(*command)
    assert refused.exit_code == 1
    assert "there is no adapter to save" in refused.stderr
    asked = list[str]()

    def saved(_: Client, folder: Path, run: str) -> Path:
        asked.append(run)
        return folder

    monkeypatch.setattr(Client, "save_adapter", saved)
    result = lipt(*command)
    assert (result.exit_code, asked) == (0, [READY])
    assert result.stdout == f"{tmp_path}/a: an adapter, for peft\n"


def test_the_weights_are_written_to_a_file(service: Service, lipt: Any, tmp_path: Path) -> None:
    expected: Any = service.ready.initial_weights
    out = tmp_path / "w.safetensors"
    command = ("weights", "get", "--run", READY, "--kind", "initial", "--out", str(out))
    result = lipt(*command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: ")
    assert result.stdout.endswith(f"B, sha256 {expected.sha256}\n")
    assert hashlib.sha256(out.read_bytes()).hexdigest() == expected.sha256
    assert json.loads(lipt(*command, "--json").stdout) == {
        "path": str(out),
        "kind": "initial",
        "sha256": expected.sha256,
        "size_bytes": expected.size_bytes,
    }


def test_a_run_and_its_subset_go_to_mlflow(
    relay: Relay, lipt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    report = tmp_path / "report.html"
    report.write_text("<html>")
    result = lipt(
        *("track", READY, "--strategies", "uniform", "--mlflow", "subsets", "--json"),
        *("--report", str(report)),
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    with Client(relay.address) as coordinator:
        subset = coordinator.subset(READY, "uniform", fraction=0.1)
    assert [tags["lipt.subset_digest"] for tags in told["subsets"]] == [subset.digest]
    client = mlflow.MlflowClient()
    names = {file.path for file in client.list_artifacts(told["logged"]["mlflow"])}
    assert names == {"run.json", "report.html", "subsets"}


QUICK = ("networks=1", "matches=2", "steps_between=1", "steps_before=1", "augmentation=none")


@pytest.fixture
def distill(lipt: Any, tmp_path: Path) -> Any:
    """Runs `lipt distill` on digits with settings that take a second."""

    def run(*arguments: str) -> Any:
        quick = (part for setting in QUICK for part in ("--set", setting))
        fixed = ("--data", "digits-train", "--model", "linear", "--device", "cpu")
        out = ("--out", str(tmp_path / "out")) if "--out" not in arguments else ()
        return lipt("distill", *fixed, *out, *quick, *arguments)

    return run


def test_synthetic_set_is_written(relay: Relay, distill: Any, lipt: Any, tmp_path: Path) -> None:
    result = distill("--per-class", "2", "--stages", "2")
    assert result.exit_code == 0, result.stderr
    again = distill("--per-class", "2", "--stages", "2", "--json")
    printed = json.loads(again.stdout)
    assert (printed["images"], len(printed["stages"])) == (20, 2)
    out = tmp_path / "out"
    assert result.stdout.splitlines() == [
        f"20 images of 10 classes in 2 stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
    ]
    assert {file.name for file in out.iterdir()} == {
        "synthetic.safetensors",
        "manifest.json",
        "sheet.png",
    }
    command = ("--data", f"distilled:{out}", "--model", "resnet8", "--steps", "2")
    trained = lipt("train", *command, "--device", "cpu", "--log", str(tmp_path / "log"))
    assert trained.exit_code == 0, trained.stderr
    assert relay.calls == []


SAID = """
the 2 worst labels:
row  labelled  looks like  fits
6    dog       cat         0.10
1    cat       dog         0.20

page: diagnosis.html, without pictures: --data opens the data for them
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pets(tmp_path: Path) -> str:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(4):
            image = Image.fromarray(np.full((8, 8), 9 * number, np.uint8))
            image.save(tmp_path / "pets" / name / f"{number}.png")
    return f"imagefolder:{tmp_path / 'pets'}"


def test_unusable_images_are_listed_with_status_1(lipt: Any, pets: str, tmp_path: Path) -> None:
    broken = tmp_path / "pets" / "dog" / "1.png"
    broken.write_bytes(b"no image")
    result = lipt("check", "--data", pets)
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith(f"image 5 ({broken}): it is not a whole image")
    assert last == f"1 of 8 images of {pets} cannot be used"


def test_the_findings_are_printed(service: Service, relay: Relay, lipt: Any, here: Path) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store))
    result = lipt("diagnose")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("pets: 8 examples, 2 classes; proxy: a ridge head on patches")
    for fact in facts(made_up_diagnosis().findings):
        assert re.search(rf"^{fact.name} +{re.escape(fact.text)}$", result.stdout, re.MULTILINE)
    assert result.stdout.endswith(SAID)
    assert "Labels that look wrong" in (here / "diagnosis.html").read_text("utf-8")
    assert relay.requests[0] == diagnosis_pb2.DiagnoseRequest()


def test_with_the_data_the_page_has_pictures_and_the_table_paths(
    service: Service, relay: Relay, lipt: Any, here: Path, pets: str
) -> None:
    fingerprint = open_dataset(pets).fingerprint
    relay.next("Diagnose", diagnosis_answer(service.store, fingerprint=fingerprint))
    options = ("--run", "latest", "--proxy", "ridge:learners", "--export", "issues.csv")
    result = lipt("diagnose", "--data", pets, *options)
    assert result.exit_code == 0, result.stderr
    assert "page: diagnosis.html\n" in result.stdout
    assert "issues: issues.csv, a row for each of 8 examples\n" in result.stdout
    page = (here / "diagnosis.html").read_text("utf-8")
    assert page.count('<img src="data:image/png;base64,') == 8
    first = (here / "issues.csv").read_text("utf-8").splitlines()[1]
    assert first.startswith(f"0,{here}/pets/cat/0.png,cat,cat,False,0.9,")
    relay.next("Diagnose", diagnosis_answer(service.store, fingerprint=fingerprint))
    result = lipt("diagnose", "--out", "found")
    assert "page: found/diagnosis.html" in result.stdout
    assert "issues: found/issues.csv, a row for each of 8 examples\n" in result.stdout
    assert {path.name for path in (here / "found").iterdir()} == {"diagnosis.html", "issues.csv"}
    # Which images are left out is asked for first.
    request = relay.requests[1]
    assert request == diagnosis_pb2.DiagnoseRequest(run_id="latest", proxy="ridge:learners")


def test_json_has_findings_no_page(service: Service, relay: Relay, lipt: Any, here: Path) -> None:
    relay.every("Diagnose", diagnosis_answer(service.store))
    document = json.loads(lipt("diagnose", "--json").stdout)
    found, sent = document["findings"], made_up_findings()
    for name in ("num_examples", "class_names", "confusion", "redundancy", "learnability"):
        assert found[name] == sent[name]
    assert document["manifest"] == {"data": {"source": "pets"}}
    assert document["page"] is None
    assert list(here.iterdir()) == []
    document = json.loads(lipt("diagnose", "--json", "--out", "d.html").stdout)
    assert document["page"] == "d.html"
    assert (here / "d.html").is_file()


def test_other_data_writes_nothing(service: Service, relay: Relay, lipt: Any, here: Path) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store))
    result = lipt("diagnose", "--data", "digits-test")
    assert result.exit_code == 1
    assert "Give the same data" in result.stderr
    assert list(here.iterdir()) == []
