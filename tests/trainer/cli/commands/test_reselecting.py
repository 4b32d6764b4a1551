"""`lipt train --strategy`: subsets that the coordinator chooses again on the weights so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from lipt.common.data import Dataset
from lipt.v1 import run_pb2, subset_pb2
from tests.relay import Relay, answer, change, refuse
from tests.service import READY, Service
from tests.trainer.cli.conftest import log_of
from tests.trainer.made_up import described

ARGUMENTS = ("--strategy", "el2n", "--budget", "40", "--epochs", "6", "--every", "2")
ASKED = subset_pb2.GetSubsetRequest


def test_a_preset_is_asked_for(relay: Relay, train: Any) -> None:
    arguments = ("--strategy", "gradmatch", "--budget", "40", "--epochs", "1")
    result = train(*arguments, "--preset", "paper")
    assert result.exit_code == 0, result.stderr
    assert [request.preset for request in relay.requests_of(ASKED)] == ["paper"]


def test_the_latest_run_is_the_newest_that_is_ready(
    service: Service, relay: Relay, train: Any
) -> None:
    newest = service.ready.run_id
    states = (run_pb2.RUN_STATE_CANCELLED, run_pb2.RUN_STATE_READY, run_pb2.RUN_STATE_READY)
    # Newest first, as a coordinator lists them.
    runs = [
        run_pb2.Run(run_id=run_id, state=state)
        for run_id, state in zip(("gone", newest, "older"), states, strict=True)
    ]
    relay.next("ListRuns", answer(run_pb2.ListRunsResponse(runs=runs)))
    assert train(*ARGUMENTS[:4], "--epochs", "1").exit_code == 0
    assert [request.run_id for request in relay.requests_of(run_pb2.GetRunRequest)] == [newest]
    assert [request.run_id for request in relay.requests_of(ASKED)] == [newest]


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_subset_is_asked_for_again(
    service: Service, relay: Relay, train: Any, tmp_path: Path, *, prefetch: bool
) -> None:
    flags = ("--prefetch", "--json") if prefetch else ("--json",)
    result = train(*ARGUMENTS, "--run", READY, "--option", "models=merged", *flags)
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
    found = [(s["epoch"], s["digest"], s["stale_epochs"]) for s in printed["reselections"]]
    assert found == [(2, digests[2], int(prefetch)), (4, digests[4], int(prefetch))]


def test_the_time_spent_waiting_is_told(train: Any) -> None:
    told = train("--strategy", "el2n", "--budget", "40", "--epochs", "3", "--every", "1")
    last = told.stdout.splitlines()[-1]
    assert last.startswith("the subset was chosen again 2 times; training waited ")
    assert last.endswith(" s for subsets")


def test_a_selection_that_fails_costs_a_line(relay: Relay, train: Any) -> None:
    failed = refuse(StatusCode.INTERNAL, "COMPUTE_FAILED", "the compute process ended.")
    relay.next("GetSubset", iter, failed)
    result = train(*ARGUMENTS, "--json")
    assert result.exit_code == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(told) == 1
    assert told[0].startswith("warning: epoch 2: no new subset (the compute process ended.)")
    assert [s["epoch"] for s in json.loads(result.stdout)["reselections"]] == [3, 4]


@pytest.mark.parametrize("steps", [12, 13])
def test_steps_end_with_an_epoch_before_which_nothing_is_asked_for(
    relay: Relay, train: Any, steps: int
) -> None:
    # Three steps per epoch: after four epochs a subset is due only where a fifth follows.
    result = train(*ARGUMENTS[:4], "--every", "2", "--steps", str(steps), "--prefetch")
    assert result.exit_code == 0, result.stderr
    assert len(relay.requests_of(ASKED)) == 2 + steps % 2


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (("--strategy", "grand"), "its selection.strategy is 'el2n', now it is 'grand'."),
        (("--budget", "30"), "its selection.budget is 40, now it is 30."),
        (("--every", "3"), "its selection.every is 2, now it is 3."),
        (("--prefetch",), "its selection.prefetch is False, now it is True."),
        (("--option", "a=1"), "its selection.options.a is None, now it is '1'."),
        (("--preset", "paper"), "its selection.preset is None, now it is 'paper'."),
    ],
    ids=lambda given: given[0],
)
def test_a_checkpoint_of_other_subsets_is_refused_with_both_values(
    relay: Relay, train: Any, tmp_path: Path, now: tuple[str, ...], difference: str
) -> None:
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


def test_a_coordinator_of_other_data_is_refused(relay: Relay, train: Any, digits: Dataset) -> None:
    relay.next("GetSubset", described(fingerprint="f" * 64))
    result = train(*ARGUMENTS)
    assert result.exit_code == 1
    assert "f" * 64 in result.stderr
    assert digits.fingerprint in result.stderr


def test_nobody_at_the_address_is_one_sentence(train: Any, dead_address: str) -> None:
    result = train(*ARGUMENTS, "--coordinator", dead_address)
    assert result.exit_code == 1
    assert f"lipt: no coordinator answers at {dead_address}" in result.stderr
