"""`lipt train` on a file's subset, or on all examples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load, load_file

from lipt.common.blobs.blob import blob_to_proto
from lipt.common.data import Dataset
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.weights.files import pack
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import run_pb2
from tests.relay import Relay, answer
from tests.service import MODEL, READY, Service
from tests.trainer.cli.conftest import log_of
from tests.trainer.made_up import made_up_subset


@pytest.fixture
def subset_file(digits: Dataset, tmp_path: Path) -> Path:
    subset = made_up_subset(range(40), [1.0, 3.0] * 20, fingerprint=digits.fingerprint)
    return subset.save(tmp_path / "subset.npy")


def test_a_subset_is_trained_on_and_everything_is_written(
    relay: Relay, train: Any, subset_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "w.safetensors"
    arguments = ("--subset", str(subset_file), "--test", "digits-test", "--epochs", "3")
    result = train(*arguments, "--out", str(out), "--json")
    assert result.exit_code == 0, result.stderr
    # 40 examples: batches of 16, 16 and 8.
    printed = json.loads(result.stdout)
    assert printed["num_steps"] == 9
    assert printed["weights"] == str(out)
    assert (printed["reselections"], printed["waited_seconds"]) == ([], 0.0)
    records = log_of(tmp_path)
    assert [record["step"] for record in records] == [3, 6, 9]
    assert {record["subset_digest"] for record in records} == {Subset.load(subset_file).digest}
    assert records[-1]["test_accuracy"] == printed["test_accuracy"]
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    model.load_state_dict(load_file(out))
    assert relay.calls == []


def test_people_get_lines_and_a_sentence(train: Any, subset_file: Path) -> None:
    result = train("--subset", str(subset_file), "--epochs", "2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("6 steps in ")
    assert result.stdout.endswith("% on the subset\n")
    lines = [line for line in result.stderr.splitlines() if ", epoch" in line]
    assert [line.split(",")[0] for line in lines] == ["step 3/6", "step 6/6"]
    assert all(word in lines[0] for word in ("loss ", "accuracy ", "examples/s", "s left"))


def test_copies_of_a_coreset_are_trained_on_as_well(
    train: Any, subset_file: Path, digits: Dataset, tmp_path: Path
) -> None:
    coreset = made_up_subset(range(24), fingerprint=digits.fingerprint).save(tmp_path / "c.npy")
    arguments = ("--coreset", str(coreset), "--set", "coreset_augmentation=crop")
    result = train("--subset", str(subset_file), *arguments, "--epochs", "2", "--json")
    assert result.exit_code == 0, result.stderr
    # 64 examples in batches of 16.
    assert json.loads(result.stdout)["num_steps"] == 8


@pytest.mark.parametrize(
    ("budget", "num_steps"),
    [(("--epochs", "2"), 6), (("--steps", "4"), 4), (("--epochs", "2", "--steps", "4"), 4)],
    ids=str,
)
def test_the_budget_is_epochs_or_steps(
    train: Any, subset_file: Path, budget: tuple[str, ...], num_steps: int
) -> None:
    result = train("--subset", str(subset_file), *budget, "--json")
    assert json.loads(result.stdout)["num_steps"] == num_steps


def test_without_a_subset_all_examples_are_trained_on(train: Any, tmp_path: Path) -> None:
    assert train("--epochs", "1").exit_code == 0
    assert log_of(tmp_path)[0]["num_examples"] == 1442


def test_images_are_scaled_where_that_is_asked_for(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (30 * number, 0, 0)).save(path)
    (tmp_path / "model_of_4x4.py").write_text(
        "from torch import nn\n"
        "def model(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = f"imagefolder:{tmp_path / 'images'}"
    flags = ("--data", source, "--test", source, "--model", "model_of_4x4:model", "--steps", "1")
    refused = train(*flags)
    assert "fails on 3x16x16 images" in refused.stderr
    assert "(--image-size)" in refused.stderr
    result = train(*flags, "--image-size", "4")
    assert result.exit_code == 0, result.stderr


def test_a_finished_checkpoint_gives_its_weights_again(
    train: Any, subset_file: Path, tmp_path: Path
) -> None:
    checkpoint, outs = tmp_path / "c.safetensors", [tmp_path / name for name in ("a", "b")]
    for out in outs:
        arguments = ("--subset", str(subset_file), "--steps", "5", "--out", str(out))
        result = train(*arguments, "--checkpoint", str(checkpoint))
        assert result.exit_code == 0, result.stderr
        told = f"{checkpoint}: training was finished, at step 5 of 5, epoch 2" in result.stderr
        assert told is (out is outs[1])
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert len(log_of(tmp_path)) == 2


def test_a_training_whose_time_is_up_ends_with_its_own_status_and_goes_on(
    train: Any, subset_file: Path, tmp_path: Path
) -> None:
    checkpoint, outs = tmp_path / "c.safetensors", [tmp_path / name for name in ("a", "b")]
    # Two epochs of three steps.
    arguments = ("--subset", str(subset_file), "--epochs", "2")
    pieces = (*arguments, "--checkpoint", str(checkpoint), "--minutes", "0", "--out", str(outs[0]))
    first = train(*pieces)
    assert first.exit_code == 75
    assert f"{checkpoint} holds training after step 3 of 6" in first.stderr
    assert not outs[0].exists()
    assert train(*pieces).exit_code == 0
    assert train(*arguments, "--out", str(outs[1])).exit_code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_minutes_need_a_checkpoint(train: Any, subset_file: Path) -> None:
    result = train("--subset", str(subset_file), "--epochs", "2", "--minutes", "8")
    assert result.exit_code == 2
    assert "Name a --checkpoint to go on from" in result.stderr


@pytest.mark.parametrize("init", ["initial", "pretrained"])
def test_training_begins_with_a_runs_weights(
    client: Client, train: Any, subset_file: Path, tmp_path: Path, init: str
) -> None:
    begins = load(client.weights(READY, init))
    out = tmp_path / "w.safetensors"
    # A learning rate that no parameter notices: what comes out is what went in.
    still = ("--steps", "1", "--set", "learning_rate=1e-30", "--out", str(out))
    result = train("--subset", str(subset_file), *still, "--init", init, "--run", READY)
    assert result.exit_code == 0, result.stderr
    trained = load_file(out)
    model = build_model(MODEL, num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    for name, _ in model.named_parameters():
        torch.testing.assert_close(trained[name], begins[name], rtol=0, atol=1e-20)


def test_weights_of_another_model_are_refused(
    service: Service, relay: Relay, train: Any, subset_file: Path
) -> None:
    other = build_model(MODEL, num_classes=3, inputs=ImageSpec(1, 8, 8), seed=0)
    weights = blob_to_proto(service.store(pack(other.state_dict())))
    relay.next("GetWeights", answer(run_pb2.GetWeightsResponse(weights=weights)))
    result = train("--subset", str(subset_file), "--init", "pretrained", "--steps", "1")
    assert result.exit_code == 1
    assert "lipt: the weights differ from the model's in 2 tensors: 'fc.weight'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--set", "learning_rat=0.1"), "learning_rat: there is no such setting"),
        (("--set", "momentum=1"), "momentum = 1"),
        (("--steps", "0"), "steps = 0"),
        (("--epochs", "-1"), "epochs = -1"),
        (("--init", "random"), "'random' is none of scratch, initial (or theta*"),
        (("--out", "/nowhere/w.safetensors"), "/nowhere is not a directory"),
        (("--checkpoint", "/nowhere/c.safetensors"), "/nowhere is not a directory"),
        (("--out", "."), ". is a directory"),
        (("--checkpoint", "."), ". is a directory"),
        (("--log", "."), ". is a directory"),
        (("--out", "w", "--checkpoint", "w"), "--checkpoint and --out are both w"),
        (("--out", "s.npy", "--subset", "s.npy"), "--subset and --out are both s.npy"),
        (("--strategy", "craig", "--fraction", "0.1", "--every", "0"), "--every"),
        (("--strategy", "craig", "--fraction", "0.1", "--option", "a"), "is not NAME=VALUE"),
        (("--strategy", "craig"), "give one of --fraction and --budget"),
        (("-s", "craig", "-f", "0.1", "-k", "3"), "give one of --fraction and --budget"),
        (("-s", "craig", "-f", "0.1", "--subset", "s.npy"), "--subset and --strategy were both"),
        (("--every", "5"), "--every was given without --strategy"),
        (("--fraction", "0.1"), "--fraction was given without --strategy or --redraw"),
        (("--prefetch",), "--prefetch was given without --strategy"),
        (("--proxy", "auto"), "--proxy was given without --strategy"),
    ],
    ids=str,
)
def test_mistyped_commands_are_usage_errors(
    relay: Relay, train: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    result = train(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert relay.calls == []


def test_a_subset_of_other_data_is_refused(train: Any, digits: Dataset, tmp_path: Path) -> None:
    path = made_up_subset(range(5)).save(tmp_path / "other.json")
    result = train("--subset", str(path), "--steps", "1")
    assert result.exit_code == 1
    assert "f" * 64 in result.stderr
    assert digits.fingerprint in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_empty_subset_is_refused(train: Any, digits: Dataset, tmp_path: Path) -> None:
    path = made_up_subset([], fingerprint=digits.fingerprint).save(tmp_path / "empty.csv")
    result = train("--subset", str(path), "--steps", "1")
    assert result.exit_code == 1
    assert "empty" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("logger", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_logger_is_named_before_anything_is_trained(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: str
) -> None:
    monkeypatch.setitem(sys.modules, logger, None)
    result = train("--steps", "1", f"--{logger}", "x")
    assert result.exit_code == 1
    assert "pip install 'lipt[loggers]'" in result.stderr
    assert not (tmp_path / "log").exists()


def test_a_missing_logger_is_named_before_torch_is_loaded() -> None:
    # A process that has no threads yet ends as it should.
    script = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from lipt.trainer.cli import main\n"
        "try: main(['train', '--data', 'digits', '--model', 'resnet8', '--tensorboard', 'x'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n"


def test_a_logger_ends_though_training_does_not_come_to_its_end(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    writer = SimpleNamespace(
        add_scalar=lambda *_: None, flush=lambda: None, close=lambda: closed.append("closed")
    )
    module = SimpleNamespace(SummaryWriter=lambda log_dir: writer)
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    # At this rate the loss is no number at the end of the first of three epochs.
    result = train("--epochs", "3", "--set", "learning_rate=1e30", "--tensorboard", "x")
    assert result.exit_code == 1
    assert "the loss is nan" in result.stderr
    assert closed == ["closed"]
