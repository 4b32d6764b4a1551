from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lipt.common.data import Dataset, open_dataset
from lipt.common.errors import UnreachableError
from lipt.common.models import build_model
from lipt.common.subset_digest import subset_digest
from lipt.common.weights.files import serialize_weights
from lipt.trainer.client import Client
from lipt.trainer.subset import Subset
from lipt.v1 import config_pb2, run_pb2, subset_pb2

SMALL = ("--set", "batch_size=16", "--set", "augmentation=none", "--device", "cpu")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return open_dataset("digits-train")


def subset_of(
    indices: Sequence[int], fingerprint: str, weights: Sequence[float] | None = None
) -> Subset:
    indices_N = np.array(indices, np.int64)
    weights_N = np.ones(len(indices), np.float32)
    if weights is not None:
        weights_N = np.array(weights, np.float32)
    digest = subset_digest(indices_N, weights_N)
    return Subset(indices_N, weights_N, fingerprint, digest, "made-up")


@pytest.fixture
def train(lipt: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs `lipt train` on digits, with a log in the test's folder."""

    def run(*arguments: str, **options: Any) -> Any:
        fixed = ("--data", "digits-train", "--model", "resnet8", "--log", str(tmp_path / "log"))
        return lipt("train", *fixed, *SMALL, *arguments, **options)

    return run


@pytest.fixture
def subset_file(digits: Dataset, tmp_path: Path) -> Path:
    subset = subset_of(range(40), digits.fingerprint, [1.0, 3.0] * 20)
    return subset.save(tmp_path / "subset.npy")


def log_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_a_subset_is_trained_on_and_everything_is_written(
    fake: Any, train: Any, subset_file: Path, tmp_path: Path
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
    model = build_model("resnet8", num_classes=10, image_shape=(1, 8, 8), seed=0)
    model.load_state_dict(load_file(out))
    assert fake.requests == []


def test_people_get_lines_and_a_sentence(train: Any, subset_file: Path) -> None:
    result = train("--subset", str(subset_file), "--epochs", "2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("6 steps in ")
    assert result.stdout.endswith("% on the subset\n")
    lines = [line for line in result.stderr.splitlines() if ", epoch" in line]
    assert [line.split(",")[0] for line in lines] == ["step 3/6", "step 6/6"]
    assert all(word in lines[0] for word in ("loss ", "accuracy ", "images/s", "s left"))


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


def test_a_finished_checkpoint_gives_its_weights_again(
    train: Any, subset_file: Path, tmp_path: Path
) -> None:
    checkpoint, outs = tmp_path / "c.safetensors", [tmp_path / name for name in ("a", "b")]
    for out in outs:
        arguments = ("--subset", str(subset_file), "--steps", "5", "--out", str(out))
        result = train(*arguments, "--checkpoint", str(checkpoint))
        assert result.exit_code == 0, result.stderr
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert len(log_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("init", "kind"),
    [("initial", run_pb2.WEIGHTS_KIND_INITIAL), ("pretrained", run_pb2.WEIGHTS_KIND_PRETRAINED)],
)
def test_training_begins_with_a_runs_weights(
    fake: Any, train: Any, subset_file: Path, tmp_path: Path, init: str, kind: Any
) -> None:
    model = build_model("resnet8", num_classes=10, image_shape=(1, 8, 8), seed=77)
    fake.weights = {kind: serialize_weights(model.state_dict())}
    out = tmp_path / "w.safetensors"
    # A learning rate that no parameter notices: what comes out is what went in.
    still = ("--steps", "1", "--set", "learning_rate=1e-30", "--out", str(out))
    result = train("--subset", str(subset_file), *still, "--init", init, "--run", "mine")
    assert result.exit_code == 0, result.stderr
    (request,) = fake.requests_of(run_pb2.GetWeightsRequest)
    assert (request.run_id, request.kind) == ("mine", kind)
    trained = load_file(out)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach(), rtol=0, atol=1e-20)


def test_weights_of_another_model_are_refused(fake: Any, train: Any, subset_file: Path) -> None:
    other = build_model("resnet8", num_classes=3, image_shape=(1, 8, 8), seed=0)
    fake.weights = {run_pb2.WEIGHTS_KIND_PRETRAINED: serialize_weights(other.state_dict())}
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
        (("--init", "random"), "'random' is none of scratch, initial, pretrained"),
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
        (("--fraction", "0.1"), "--fraction was given without --strategy"),
        (("--prefetch",), "--prefetch was given without --strategy"),
    ],
    ids=str,
)
def test_mistyped_commands_are_usage_errors(
    fake: Any, train: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    result = train(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert fake.requests == []


def test_a_subset_of_other_data_is_refused(train: Any, digits: Dataset, tmp_path: Path) -> None:
    path = subset_of(range(5), "f" * 64).save(tmp_path / "other.json")
    result = train("--subset", str(path), "--steps", "1")
    assert result.exit_code == 1
    assert "f" * 64 in result.stderr
    assert digits.fingerprint in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_empty_subset_is_refused(train: Any, digits: Dataset, tmp_path: Path) -> None:
    path = subset_of([], digits.fingerprint).save(tmp_path / "empty.csv")
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


class TestReselection:
    """`--strategy`, against a coordinator that answers with scripted subsets."""

    ARGUMENTS = ("--strategy", "craig", "--budget", "40", "--epochs", "6", "--every", "2")

    @pytest.fixture(autouse=True)
    def run_of_resnet8(self, fake: Any) -> None:
        config = config_pb2.RunConfig(model="resnet8")
        fake.runs = [run_pb2.Run(run_id="r-1", name="mine", config=config)]

    @staticmethod
    def script(start: int, fingerprint: str) -> list[Any]:
        subset = subset_of(range(start, start + 40), fingerprint)
        described = subset_pb2.Subset(
            strategy="craig",
            num_examples=40,
            fingerprint=fingerprint,
            digest=subset.digest,
            manifest_json="{}",
        )
        examples = subset_pb2.SubsetExamples(
            indices=subset.indices.tolist(), weights=subset.weights.tolist()
        )
        return [
            subset_pb2.GetSubsetResponse(subset=described),
            subset_pb2.GetSubsetResponse(examples=examples),
        ]

    @pytest.mark.parametrize("prefetch", [False, True])
    def test_the_subset_is_asked_for_again(
        self, fake: Any, train: Any, digits: Dataset, tmp_path: Path, *, prefetch: bool
    ) -> None:
        fake.subset_scripts = [self.script(start, digits.fingerprint) for start in (0, 50, 100)]
        flags = ("--prefetch", "--json") if prefetch else ("--json",)
        result = train(*self.ARGUMENTS, "--option", "a=1", *flags)
        assert result.exit_code == 0, result.stderr
        asked = fake.requests_of(subset_pb2.GetSubsetRequest)
        assert [request.run_id for request in asked] == ["r-1"] * 3
        assert [request.HasField("weights") for request in asked] == [False, True, True]
        assert asked[1].weights.sha256 != asked[2].weights.sha256
        assert all(dict(request.options) == {"a": "1"} for request in asked)
        digests = [record["subset_digest"] for record in log_of(tmp_path)]
        assert digests[0::2] == digests[1::2]
        assert len(set(digests)) == 3
        printed = json.loads(result.stdout)
        assert printed["num_steps"] == 18
        assert printed["waited_seconds"] > 0
        found = [(s["epoch"], s["digest"], s["stale_epochs"]) for s in printed["reselections"]]
        assert found == [(2, digests[2], int(prefetch)), (4, digests[4], int(prefetch))]

    def test_the_time_spent_waiting_is_told(self, fake: Any, train: Any, digits: Dataset) -> None:
        fake.subset_scripts = [self.script(start, digits.fingerprint) for start in (0, 50, 100)]
        result = train(*self.ARGUMENTS)
        last = result.stdout.splitlines()[-1]
        assert last.startswith("the subset was chosen again 2 times; training waited ")
        assert last.endswith(" s for subsets")

    def test_a_coordinator_that_goes_away_costs_a_line(
        self, fake: Any, train: Any, digits: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.subset_scripts = [self.script(start, digits.fingerprint) for start in (0, 50, 100)]
        ask, answers = Client.subset, iter([True, False, True, True])

        def subset(client: Client, *arguments: Any, **options: Any) -> Subset:
            if next(answers):
                return ask(client, *arguments, **options)
            raise UnreachableError("nobody answers.")

        monkeypatch.setattr(Client, "subset", subset)
        result = train(*self.ARGUMENTS, "--json")
        assert result.exit_code == 0, result.stderr
        told = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
        assert len(told) == 1
        assert told[0].startswith("warning: epoch 2: no new subset (nobody answers.)")
        assert [s["epoch"] for s in json.loads(result.stdout)["reselections"]] == [3, 4]

    @pytest.mark.parametrize("steps", [12, 13])
    def test_steps_end_with_an_epoch_before_which_nothing_is_asked_for(
        self, fake: Any, train: Any, digits: Dataset, steps: int
    ) -> None:
        # Three steps per epoch: after four epochs a subset is due only where a fifth follows.
        starts = (0, 50, 100)[: 2 + steps % 2]
        fake.subset_scripts = [self.script(start, digits.fingerprint) for start in starts]
        result = train(*self.ARGUMENTS[:4], "--every", "2", "--steps", str(steps), "--prefetch")
        assert result.exit_code == 0, result.stderr
        assert len(fake.requests_of(subset_pb2.GetSubsetRequest)) == len(starts)

    @pytest.mark.parametrize(
        ("now", "difference"),
        [
            (("--strategy", "grand"), "its selection.strategy is 'craig', now it is 'grand'."),
            (("--budget", "30"), "its selection.budget is 40, now it is 30."),
            (("--every", "3"), "its selection.every is 2, now it is 3."),
            (("--prefetch",), "its selection.prefetch is False, now it is True."),
            (("--option", "a=1"), "its selection.options.a is None, now it is '1'."),
        ],
        ids=lambda given: given[0],
    )
    def test_a_checkpoint_of_other_subsets_is_refused_with_both_values(
        self,
        fake: Any,
        train: Any,
        digits: Dataset,
        tmp_path: Path,
        now: tuple[str, ...],
        difference: str,
    ) -> None:
        fake.subset_scripts = [self.script(0, digits.fingerprint)]
        path = tmp_path / "c.safetensors"
        given = (*self.ARGUMENTS, "--epochs", "1", "--checkpoint", str(path))
        assert train(*given).exit_code == 0
        before = path.read_bytes()
        result = train(*given, *now)
        assert result.exit_code == 1
        assert result.stderr == (
            f"lipt: {path} is the checkpoint of another training: {difference} Remove the file to "
            "train from the start, or give the settings that it was made with.\n"
        )
        assert path.read_bytes() == before
        # The settings that it was made with are no other training.
        assert train(*given).exit_code == 0
        assert len(fake.requests_of(subset_pb2.GetSubsetRequest)) == 1

    def test_another_model_is_refused_before_it_is_trained(
        self, fake: Any, train: Any, tmp_path: Path
    ) -> None:
        fake.runs[0].config.model = "resnet18"
        result = train(*self.ARGUMENTS)
        assert result.exit_code == 1
        assert result.stderr == (
            "lipt: run mine selects on weights of resnet18, but --model is resnet8. "
            "Give --model resnet18, or another --run.\n"
        )
        assert not fake.requests_of(subset_pb2.GetSubsetRequest)

    def test_a_coordinator_of_other_data_is_refused(
        self, fake: Any, train: Any, digits: Dataset
    ) -> None:
        fake.subset_scripts = [self.script(0, "f" * 64)]
        result = train(*self.ARGUMENTS)
        assert result.exit_code == 1
        assert "f" * 64 in result.stderr
        assert digits.fingerprint in result.stderr

    def test_nobody_at_the_address_is_one_sentence(self, train: Any, dead_address: str) -> None:
        result = train(*self.ARGUMENTS, "--coordinator", dead_address)
        assert result.exit_code == 1
        assert f"lipt: no coordinator answers at {dead_address}" in result.stderr
