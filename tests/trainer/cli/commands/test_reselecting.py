"""`lipt train --strategy`, against a coordinator that answers with scripted subsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lipt.common.data import Dataset
from lipt.common.errors import UnreachableError
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import config_pb2, run_pb2, subset_pb2
from tests.trainer.cli.conftest import log_of
from tests.trainer.made_up import made_up_subset, subset_description, subset_examples

ARGUMENTS = ("--strategy", "craig", "--budget", "40", "--epochs", "6", "--every", "2")


@pytest.fixture(autouse=True)
def run_of_resnet8(fake: Any) -> None:
    config = config_pb2.RunConfig(model="resnet8")
    fake.runs = [run_pb2.Run(run_id="r-1", name="mine", config=config)]


def script(start: int, fingerprint: str) -> list[Any]:
    subset = made_up_subset(range(start, start + 40), fingerprint=fingerprint)
    described = subset_description(
        subset.digest,
        strategy="craig",
        num_examples=40,
        fingerprint=fingerprint,
        manifest_json="{}",
    )
    return [described, subset_examples(subset.indices.tolist(), subset.weights.tolist())]


def test_a_preset_is_asked_for_every_time(fake: Any, train: Any, digits: Dataset) -> None:
    fake.subset_scripts = [script(start, digits.fingerprint) for start in (0, 50, 100)]
    for described, _ in fake.subset_scripts:
        described.subset.manifest_json = '{"preset": "paper"}'
    result = train(*ARGUMENTS, "--preset", "paper")
    assert result.exit_code == 0, result.stderr
    asked = fake.requests_of(subset_pb2.GetSubsetRequest)
    assert [request.preset for request in asked] == ["paper"] * 3


def test_the_latest_run_is_the_newest_that_is_ready(fake: Any, train: Any, digits: Dataset) -> None:
    # Newest first, as a coordinator lists them.
    states = (run_pb2.RUN_STATE_CANCELLED, run_pb2.RUN_STATE_READY, run_pb2.RUN_STATE_READY)
    config = config_pb2.RunConfig(model="resnet8")
    fake.runs = [
        run_pb2.Run(run_id=run_id, state=state, config=config)
        for run_id, state in zip(("gone", "newer", "r-1"), states, strict=True)
    ]
    fake.subset_scripts = [script(start, digits.fingerprint) for start in (0, 50, 100)]
    assert train(*ARGUMENTS).exit_code == 0
    assert fake.requests_of(run_pb2.GetRunRequest) == [run_pb2.GetRunRequest(run_id="newer")]


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_subset_is_asked_for_again(
    fake: Any, train: Any, digits: Dataset, tmp_path: Path, *, prefetch: bool
) -> None:
    fake.subset_scripts = [script(start, digits.fingerprint) for start in (0, 50, 100)]
    flags = ("--prefetch", "--json") if prefetch else ("--json",)
    result = train(*ARGUMENTS, "--option", "a=1", *flags)
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


def test_the_time_spent_waiting_is_told(fake: Any, train: Any, digits: Dataset) -> None:
    fake.subset_scripts = [script(start, digits.fingerprint) for start in (0, 50, 100)]
    result = train(*ARGUMENTS)
    last = result.stdout.splitlines()[-1]
    assert last.startswith("the subset was chosen again 2 times; training waited ")
    assert last.endswith(" s for subsets")


def test_a_coordinator_that_goes_away_costs_a_line(
    fake: Any, train: Any, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.subset_scripts = [script(start, digits.fingerprint) for start in (0, 50, 100)]
    ask, answers = Client.subset, iter([True, False, True, True])

    def subset(client: Client, *arguments: Any, **options: Any) -> Subset:
        if next(answers):
            return ask(client, *arguments, **options)
        raise UnreachableError("nobody answers.")

    monkeypatch.setattr(Client, "subset", subset)
    result = train(*ARGUMENTS, "--json")
    assert result.exit_code == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(told) == 1
    assert told[0].startswith("warning: epoch 2: no new subset (nobody answers.)")
    assert [s["epoch"] for s in json.loads(result.stdout)["reselections"]] == [3, 4]


@pytest.mark.parametrize("steps", [12, 13])
def test_steps_end_with_an_epoch_before_which_nothing_is_asked_for(
    fake: Any, train: Any, digits: Dataset, steps: int
) -> None:
    # Three steps per epoch: after four epochs a subset is due only where a fifth follows.
    starts = (0, 50, 100)[: 2 + steps % 2]
    fake.subset_scripts = [script(start, digits.fingerprint) for start in starts]
    result = train(*ARGUMENTS[:4], "--every", "2", "--steps", str(steps), "--prefetch")
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
        (("--preset", "paper"), "its selection.preset is None, now it is 'paper'."),
    ],
    ids=lambda given: given[0],
)
def test_a_checkpoint_of_other_subsets_is_refused_with_both_values(
    fake: Any,
    train: Any,
    digits: Dataset,
    tmp_path: Path,
    now: tuple[str, ...],
    difference: str,
) -> None:
    fake.subset_scripts = [script(0, digits.fingerprint)]
    path = tmp_path / "c.safetensors"
    given = (*ARGUMENTS, "--epochs", "1", "--checkpoint", str(path))
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
    fake: Any, train: Any, tmp_path: Path
) -> None:
    fake.runs[0].config.model = "resnet18"
    result = train(*ARGUMENTS)
    assert result.exit_code == 1
    assert result.stderr == (
        "lipt: run mine selects on weights of resnet18, but --model is resnet8. "
        "Give --model resnet18, or another --run.\n"
    )
    assert not fake.requests_of(subset_pb2.GetSubsetRequest)


def test_a_coordinator_of_other_data_is_refused(fake: Any, train: Any, digits: Dataset) -> None:
    fake.subset_scripts = [script(0, "f" * 64)]
    result = train(*ARGUMENTS)
    assert result.exit_code == 1
    assert "f" * 64 in result.stderr
    assert digits.fingerprint in result.stderr


def test_nobody_at_the_address_is_one_sentence(train: Any, dead_address: str) -> None:
    result = train(*ARGUMENTS, "--coordinator", dead_address)
    assert result.exit_code == 1
    assert f"lipt: no coordinator answers at {dead_address}" in result.stderr
