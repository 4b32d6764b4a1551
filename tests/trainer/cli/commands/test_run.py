from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from lipt.common.weights.files import pack
from lipt.trainer.client.client import Client
from lipt.v1 import config_pb2, run_pb2
from tests.cluster import LoggedProcess
from tests.relay import Fault, Relay, answer
from tests.service import READY, SMALLEST, WORKER, Service


def run_at(revision: int, state: Any, **fields: Any) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", name="mine", revision=revision, state=state, **fields)


def found(run: run_pb2.Run) -> Fault:
    return answer(run_pb2.GetRunResponse(run=run))


def listed(*runs: run_pb2.Run) -> Fault:
    return answer(run_pb2.ListRunsResponse(runs=runs))


def watched(*runs: run_pb2.Run) -> Fault:
    return answer(*(run_pb2.WatchRunResponse(run=run) for run in runs))


def test_starting_sends_flags_and_settings(relay: Relay, lipt: Any, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[run]\nseed = 4\n[run.pruning]\nmethod = 'snip'\n")
    result = lipt(
        *("run", "start", "--name", "flags", "--model", "resnet8", "--num-steps", "5"),
        *("--set", "learners.batch_size=16", "--config", str(config)),
    )
    assert result.exit_code == 0, result.stderr
    started = r"run flags \([0-9a-f]+\) has started\.\nFollow it with: lipt run watch flags\n"
    assert re.fullmatch(started, result.stdout)
    (request,) = relay.requests_of(run_pb2.CreateRunRequest)
    assert request.config == config_pb2.RunConfig(
        model="resnet8",
        seed=4,
        learners=config_pb2.LearnersConfig(num_steps=5, batch_size=16),
        pruning=config_pb2.PruningConfig(method=config_pb2.PRUNING_METHOD_SNIP),
    )


def test_a_preset_is_sent_under_the_settings_given(relay: Relay, lipt: Any) -> None:
    lipt("run", "start", "--preset", "paper", "--batch-size", "16", "--set", "soup.num_alphas=2")
    (request,) = relay.requests_of(run_pb2.CreateRunRequest)
    assert request.config.soup == config_pb2.SoupConfig(
        method=config_pb2.SOUP_METHOD_GREEDY, num_alphas=2, search=config_pb2.SOUP_SEARCH_GRID
    )
    learners = config_pb2.LearnersConfig(
        num_learners=10, num_minibatches=1, num_steps=10, batch_size=16
    )
    assert request.config.learners == learners


def test_starting_says_what_was_lowered_to_fit_the_data(relay: Relay, lipt: Any) -> None:
    # The default is ten learners of ten batches of 128, and the digits are 1,442.
    first, fitted, last = lipt("run", "start").stdout.splitlines()
    assert first.endswith(" has started.")
    assert fitted.startswith("fitted to the data: ")
    assert last.startswith("Follow it with: lipt run watch ")
    relay.every("WatchRun", watched(run_at(2, run_pb2.RUN_STATE_READY)))
    assert lipt("run", "start", "--watch").stdout.splitlines()[0] == fitted
    lines = lipt("run", "start", "--watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["ready"]


def test_a_state_dict_of_torch_is_sent_as_safetensors_with_a_new_head_and_frozen_layers(
    service: Service, relay: Relay, client: Client, lipt: Any, tmp_path: Path
) -> None:
    weights = safetensors.torch.load(client.weights(READY))
    weights["fc.weight"], weights["fc.bias"] = torch.ones(3, 64), torch.ones(3)
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "backbone.pt")
    result = lipt(
        *("run", "start", "--initial-weights", str(tmp_path / "backbone.pt"), "--new-head"),
        *("--freeze", "conv1.*", "--freeze", "blocks.0.*"),
    )
    assert result.exit_code == 0, result.stderr
    content = pack(weights)
    digest = hashlib.sha256(content).hexdigest()
    assert service.blob(digest) == content
    (request,) = relay.requests_of(run_pb2.CreateRunRequest)
    assert request.config == config_pb2.RunConfig(
        initialization=config_pb2.InitializationConfig(weights_sha256=digest, new_head=True),
        learners=config_pb2.LearnersConfig(frozen=["conv1.*", "blocks.0.*"]),
    )


def test_runs_are_listed(relay: Relay, lipt: Any) -> None:
    header, *rows = lipt("run", "list").stdout.splitlines()
    assert header.split() == ["name", "id", "state", "model", "created", "soup", "message"]
    (row,) = (row.split() for row in rows if row.startswith(f"{READY} "))
    assert row[2:4] == ["ready", "resnet8"]
    (found,) = (
        run for run in json.loads(lipt("run", "list", "--json").stdout) if run["name"] == READY
    )
    assert (found["state"], found["model"], found["message"]) == ("ready", "resnet8", "")
    assert 0 < found["soup_accuracy"] < 1
    relay.next("ListRuns", listed())
    assert "lipt run start" in lipt("run", "list").stdout


STATES = (run_pb2.RUN_STATE_PENDING, run_pb2.RUN_STATE_MERGING, run_pb2.RUN_STATE_READY)


def test_watching_prints_a_line_per_change_until_the_run_is_ready(relay: Relay, lipt: Any) -> None:
    relay.every("GetRun", found(run_at(1, STATES[0])))
    relay.every(
        "WatchRun", watched(*(run_at(number, state) for number, state in enumerate(STATES, 1)))
    )
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 0
    assert result.stdout == "run mine: pending\nrun mine: merging\nrun mine: ready\n"
    lines = lipt("run", "watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["pending", "merging", "ready"]


def test_watching_a_run_that_is_held_ends_with_status_1_and_what_to_do(
    relay: Relay, lipt: Any
) -> None:
    held = run_at(2, run_pb2.RUN_STATE_HELD, message="Start the coordinator with other data.")
    relay.next("GetRun", found(run_at(1, run_pb2.RUN_STATE_TRAINING)), found(held))
    relay.next("WatchRun", watched(held, run_at(3, run_pb2.RUN_STATE_READY)))
    relay.next("ListRuns", listed(held))
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 1
    assert result.stdout == "run mine: held: Start the coordinator with other data.\n"
    assert "held" in lipt("run", "list").stdout
    assert "run mine: held: Start the coordinator" in lipt("run", "show").stdout


@pytest.mark.parametrize("watch_alone", [True, False])
def test_who_stops_watching_is_told_that_the_run_goes_on(
    relay: Relay, client: Client, tmp_path: Path, *, watch_alone: bool
) -> None:
    name = f"stopped-{int(watch_alone)}"
    command = ("run", "watch", name)
    if watch_alone:
        client.start_run(SMALLEST, name=name)
    else:
        command = ("run", "start", "--name", name, "--watch", "--num-learners", "2")
    arguments = ["-m", "lipt.trainer.cli", *command, "--coordinator", relay.address]
    process = LoggedProcess(arguments, tmp_path / "log", os.environ)
    process.wait_for(f"run {name}: training")
    assert process.stop(signal.SIGINT) == 130
    assert process.text().splitlines()[-3:] == [
        f"run {name} goes on without you.",
        f"Follow it again with: lipt run watch {name}",
        f"End it with: lipt run cancel {name}",
    ]
    assert relay.requests_of(run_pb2.CancelRunRequest) == []


def test_a_run_is_cancelled(client: Client, lipt: Any) -> None:
    client.start_run(SMALLEST, name="unwanted")
    assert lipt("run", "cancel", "unwanted").stdout == "run unwanted is cancelled.\n"
    assert json.loads(lipt("run", "cancel", "unwanted", "--json").stdout)["state"] == "cancelled"


def test_a_run_is_shown_with_its_learners(lipt: Any) -> None:
    result = lipt("run", "show", READY)
    assert re.search(r"soup \d+\.\d% on 200 validation examples", result.stdout)
    assert re.search(r"training \d+\.\d s", result.stdout)
    assert re.search(r"[\d.]+ \w?B to and [\d.]+ \w?B from workers", result.stdout)
    assert result.stdout.count(WORKER) == 2
    shown = json.loads(lipt("run", "show", READY, "--json").stdout)
    assert [learner["worker"] for learner in shown["learners"]] == [WORKER] * 2
    assert shown["state"] == "ready"
