"""`lipt run start`, `list`, `show`, `watch` and `cancel`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.weights.container import pack
from lipt.v1 import config_pb2, run_pb2
from tests.cluster import LoggedProcess


def run_at(revision: int, state: Any, **fields: Any) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", name="mine", revision=revision, state=state, **fields)


def test_starting_sends_flags_and_settings(fake: Any, lipt: Any, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[run]\nseed = 4\n[run.pruning]\nmethod = 'snip'\n")
    result = lipt(
        *("run", "start", "--name", "mine", "--model", "resnet8", "--num-steps", "5"),
        *("--set", "learners.learning_rate=0.05", "--config", str(config)),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ("run mine (r-1) has started.\nFollow it with: lipt run watch mine\n")
    (request,) = fake.requests_of(run_pb2.CreateRunRequest)
    assert request.config == config_pb2.RunConfig(
        model="resnet8",
        seed=4,
        learners=config_pb2.LearnersConfig(num_steps=5, learning_rate=0.05),
        pruning=config_pb2.PruningConfig(method=config_pb2.PRUNING_METHOD_SNIP),
    )


def test_starting_says_what_was_lowered_to_fit_the_data(fake: Any, lipt: Any) -> None:
    fake.fitted = "2560 are more than 1597"
    assert lipt("run", "start").stdout == (
        "run made-up (r-1) has started.\n"
        "fitted to the data: 2560 are more than 1597\n"
        "Follow it with: lipt run watch made-up\n"
    )
    fake.watch_scripts = [[run_at(2, run_pb2.RUN_STATE_READY)]] * 2
    watched = lipt("run", "start", "--watch").stdout
    assert watched.splitlines()[0] == "fitted to the data: 2560 are more than 1597"
    lines = lipt("run", "start", "--watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["ready"]


def test_starting_with_weights_uploads_them_first(fake: Any, lipt: Any, tmp_path: Path) -> None:
    content = struct.pack("<Q", 2) + b"{}"
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(content)
    result = lipt("run", "start", "--initial-weights", str(weights), "--json")
    assert result.exit_code == 0, result.stderr
    digest = hashlib.sha256(content).hexdigest()
    assert fake.blobs[digest] == content
    assert json.loads(result.stdout)["config"]["initialization"]["weights_sha256"] == digest


def test_a_state_dict_of_torch_is_sent_as_safetensors_with_a_new_head_and_frozen_layers(
    fake: Any, lipt: Any, tmp_path: Path
) -> None:
    fake.info.protocol.minor = 4
    weights = {"conv.weight": torch.ones(2, 2)}
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "backbone.pt")
    result = lipt(
        *("run", "start", "--initial-weights", str(tmp_path / "backbone.pt"), "--new-head"),
        *("--freeze", "conv.*", "--freeze", "bn1.*"),
    )
    assert result.exit_code == 0, result.stderr
    content = pack(weights)
    digest = hashlib.sha256(content).hexdigest()
    assert fake.blobs[digest] == content
    (request,) = fake.requests_of(run_pb2.CreateRunRequest)
    assert request.config == config_pb2.RunConfig(
        initialization=config_pb2.InitializationConfig(weights_sha256=digest, new_head=True),
        learners=config_pb2.LearnersConfig(frozen=["conv.*", "bn1.*"]),
    )


def test_an_older_coordinator_is_not_asked_for_what_it_would_pass_over(
    fake: Any, lipt: Any
) -> None:
    for setting in ('learners.frozen=["fc.*"]', "initialization.new_head=true"):
        result = lipt("run", "start", "--set", setting)
        assert result.exit_code == 1
        assert "speaks protocol 1.0: from 1.4 on it knows of learners.frozen" in result.stderr
    assert fake.requests_of(run_pb2.CreateRunRequest) == []


def test_what_a_run_took_of_given_weights_is_said(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_TRAINING, note="left over: 'proj.w'.")]
    assert "left over: 'proj.w'." in lipt("run", "show", "mine").stdout.splitlines()


def test_a_pickle_as_weights_is_refused_before_anything_is_sent(
    fake: Any, lipt: Any, tmp_path: Path
) -> None:
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"\x80\x04}\x94.")
    result = lipt("run", "start", "--initial-weights", str(weights))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"lipt: {weights} is a pickle")
    assert "safetensors.torch.save_file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert fake.requests == []


def test_a_file_that_cannot_be_written_is_one_sentence(fake: Any, lipt: Any) -> None:
    result = lipt("run", "start", "--initial-weights", "/nowhere/w.safetensors")
    assert (result.exit_code, result.stderr) == (
        1,
        "lipt: /nowhere/w.safetensors: No such file or directory\n",
    )


def test_an_unknown_setting_is_one_sentence_with_those_there_are(lipt: Any) -> None:
    result = lipt("run", "start", "--set", "learners.num_stepz=5")
    assert result.exit_code == 1
    assert result.stderr.startswith("lipt: learners.num_stepz: there is no such setting")
    assert "num_steps" in result.stderr


def test_runs_are_listed(fake: Any, lipt: Any) -> None:
    assert "lipt run start" in lipt("run", "list").stdout
    fake.runs = [run_at(1, run_pb2.RUN_STATE_FAILED, message="no learner arrived.")]
    header, row = lipt("run", "list").stdout.splitlines()
    assert header.split() == ["name", "id", "state", "model", "created", "soup", "message"]
    assert row.split()[:4] == ["mine", "r-1", "failed", "resnet18"]


def test_runs_are_listed_in_short_for_scripts_and_whole_where_asked(fake: Any, lipt: Any) -> None:
    soup = run_pb2.SoupReport(soup_accuracy=0.5)
    config = config_pb2.RunConfig(model="resnet8", seed=3)
    fake.runs = [run_at(1, run_pb2.RUN_STATE_READY, soup=soup, config=config)]
    assert json.loads(lipt("run", "list", "--json").stdout) == [
        {
            "run_id": "r-1",
            "name": "mine",
            "state": "ready",
            "model": "resnet8",
            "seed": 3,
            "created_at": None,
            "ended_at": None,
            "soup_accuracy": 0.5,
            "message": "",
        }
    ]
    (whole,) = json.loads(lipt("run", "list", "--json", "--full").stdout)
    assert whole["config"]["learners"]["num_learners"] == 10


def test_a_run_is_shown_with_its_learners(fake: Any, lipt: Any) -> None:
    learner = run_pb2.Learner(
        index=0, state=run_pb2.LEARNER_STATE_DONE, worker_name="w-1", step=10, density=0.9
    )
    fake.runs = [
        run_at(
            1,
            run_pb2.RUN_STATE_READY,
            learners=[learner],
            soup=run_pb2.SoupReport(soup_accuracy=0.5, num_kept=1, num_validation_examples=200),
            costs=run_pb2.Costs(training_seconds=2.0, bytes_to_workers=1_234_567),
        )
    ]
    result = lipt("run", "show")
    assert "soup 50.0% on 200 validation examples" in result.stdout
    assert "training 2.0 s" in result.stdout
    assert "1.2 MB to and 0 B from workers" in result.stdout
    assert "w-1" in result.stdout
    shown = json.loads(lipt("run", "show", "--json").stdout)
    assert shown["learners"][0]["worker"] == "w-1"
    assert shown["state"] == "ready"


def test_watching_prints_lines_until_the_run_is_ready(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_PENDING)]
    states = (run_pb2.RUN_STATE_PENDING, run_pb2.RUN_STATE_MERGING, run_pb2.RUN_STATE_READY)
    fake.watch_scripts = [[run_at(number, state) for number, state in enumerate(states, 1)]]
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "run mine: pending",
        "run mine: merging",
        "run mine: ready",
    ]


def test_watching_a_run_that_fails_ends_with_status_1(fake: Any, lipt: Any) -> None:
    fake.watch_scripts = [[run_at(2, run_pb2.RUN_STATE_FAILED, message="no learner arrived.")]]
    result = lipt("run", "start", "--watch")
    assert result.exit_code == 1
    assert result.stdout == "run mine: failed: no learner arrived.\n"


def test_watching_a_run_that_is_held_ends_with_status_1_and_what_to_do(
    fake: Any, lipt: Any
) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_TRAINING)]
    held = run_at(2, run_pb2.RUN_STATE_HELD, message="Start the coordinator with other data.")
    fake.watch_scripts = [[held, run_at(3, run_pb2.RUN_STATE_READY)]]
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 1
    assert result.stdout == "run mine: held: Start the coordinator with other data.\n"
    fake.runs = [held]
    assert "held" in lipt("run", "list").stdout
    assert "run mine: held: Start the coordinator" in lipt("run", "show").stdout


@pytest.mark.parametrize("command", [("run", "watch", "mine"), ("run", "start", "--watch")])
def test_who_stops_watching_is_told_that_the_run_goes_on(
    fake: Any, silence: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    training = run_at(1, run_pb2.RUN_STATE_TRAINING)
    fake.runs, fake.watch_scripts = [training], [[training, silence]]
    arguments = ["-m", "lipt.trainer.cli", *command, "--coordinator", fake.address]
    process = LoggedProcess(arguments, tmp_path / "log", os.environ)
    process.wait_for("run mine: training")
    assert process.stop(signal.SIGINT) == 130
    name = "mine" if command[1] == "watch" else "made-up"
    assert process.text().splitlines()[-3:] == [
        f"run {name} goes on without you.",
        f"Follow it again with: lipt run watch {name}",
        f"End it with: lipt run cancel {name}",
    ]
    assert fake.requests_of(run_pb2.CancelRunRequest) == []


def test_watching_in_json_prints_an_object_per_change(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_PENDING)]
    fake.watch_scripts = [
        [run_at(1, run_pb2.RUN_STATE_PENDING), run_at(2, run_pb2.RUN_STATE_READY)]
    ]
    lines = lipt("run", "watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["pending", "ready"]


def test_a_run_is_cancelled(fake: Any, lipt: Any) -> None:
    fake.runs = [run_at(1, run_pb2.RUN_STATE_TRAINING)]
    assert lipt("run", "cancel", "mine").stdout == "run mine is cancelled.\n"
    assert json.loads(lipt("run", "cancel", "mine", "--json").stdout)["state"] == "cancelled"
