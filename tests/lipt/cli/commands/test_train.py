import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file

from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec
from lipt.models.registry import build_model
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2
from tests.lipt.cli.conftest import log_of
from tests.relay import Relay, change
from tests.service import MODEL, READY, Service
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
    assert (printed["recipe"]["batch_size"], printed["recipe"]["augmentation"]) == (16, "none")
    assert (printed["reselections"], printed["waited_seconds"]) == ([], 0.0)
    records = log_of(tmp_path)
    assert [record["step"] for record in records] == [3, 6, 9]
    assert {record["subset_digest"] for record in records} == {Subset.load(subset_file).digest}
    assert records[-1]["test_accuracy"] == printed["test_accuracy"]
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=0)
    model.load_state_dict(load_file(out))
    assert relay.calls == []


def test_a_training_out_of_time_has_its_own_status_and_resumes(
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
    second = train(*pieces)
    assert second.exit_code == 0
    assert second.stderr.startswith("step 3/6, epoch 1, from the checkpoint\n")
    assert train(*arguments, "--out", str(outs[1])).exit_code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


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


def test_a_missing_logger_is_named_before_torch_is_loaded() -> None:
    # A process that has no threads yet ends as it should.
    script = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from lipt.cli import main\n"
        "try: main(['train', '--data', 'digits', '--model', 'resnet8', '--tensorboard', 'x'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n"


def test_loggers_are_closed_after_a_failed_training(
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


ARGUMENTS = ("--strategy", "el2n", "--budget", "40", "--epochs", "6", "--every", "2")
ASKED = subset_pb2.GetSubsetRequest


def test_training_reselects_by_the_strategy(
    service: Service, relay: Relay, train: Any, tmp_path: Path
) -> None:
    result = train(*ARGUMENTS, "--run", READY, "--option", "models=merged", "--json")
    assert result.exit_code == 0, result.stderr
    asked = relay.requests_of(ASKED)
    assert [request.run_id for request in asked] == [service.ready.run_id] * 3
    assert [request.HasField("weights") for request in asked] == [False, True, True]
    assert asked[1].weights.sha256 != asked[2].weights.sha256
    assert all(dict(request.options) == {"models": "merged"} for request in asked)
    digests = [record["subset_digest"] for record in log_of(tmp_path)]
    assert digests[0::2] == digests[1::2]
    assert len(set(digests)) == 3
    printed = json.loads(result.stdout)
    assert printed["num_steps"] == 18
    assert printed["waited_seconds"] > 0
    found = [(selected["epoch"], selected["digest"]) for selected in printed["reselections"]]
    assert found == [(2, digests[2]), (4, digests[4])]


def test_a_checkpoint_of_other_subsets_is_refused_with_both_values(
    relay: Relay, train: Any, tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    given = (*ARGUMENTS, "--epochs", "1", "--checkpoint", str(path))
    assert train(*given).exit_code == 0
    before = path.read_bytes()
    result = train(*given, "--preset", "paper")
    assert result.exit_code == 1
    assert "its selection.preset is None, now it is 'paper'." in result.stderr
    assert path.read_bytes() == before
    # The settings that it was made with are no other training.
    assert train(*given).exit_code == 0
    assert len(relay.requests_of(ASKED)) == 1


def test_another_model_is_refused_before_it_is_trained(relay: Relay, train: Any) -> None:
    relay.next("GetRun", change(lambda found: setattr(found.run.config, "model", "resnet18")))
    result = train(*ARGUMENTS)
    assert result.exit_code == 1
    assert result.stderr == (
        "lipt: run first selects on weights of resnet18, but --model is resnet8. "
        "Give --model resnet18, or another --run.\n"
    )
    assert not relay.requests_of(ASKED)


def test_resampled_training_has_a_fixed_subset_s_steps(
    relay: Relay, train: Any, tmp_path: Path
) -> None:
    result = train("--resample", "--budget", "40", "--epochs", "4", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_steps"] == 12  # batches of 16, 16 and 8
    records = log_of(tmp_path)
    assert [record["num_examples"] for record in records] == [40] * 4
    assert len({record["subset_digest"] for record in records}) == 4
    assert relay.calls == []
