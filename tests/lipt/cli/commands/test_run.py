import hashlib
import json
import os
import re
import shlex
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from google.protobuf import text_format
from typer.testing import CliRunner

from lipt.cli import main
from lipt.cli.certificates import Folder
from lipt.cli.commands.service import token_state, tunnel_hint
from lipt.common.access import Role
from lipt.common.access.tls import identity_of
from lipt.common.tensor_files import pack
from lipt.core.catalogue import describe
from lipt.core.selection.select import STRATEGIES
from lipt.core.signals.views import INITIAL_NEEDS
from lipt.trainer.client.client import Client
from lipt.trainer.formatting import to_jsonable
from lipt.trainer.views import TokenView
from lipt.v1 import access_pb2, config_pb2, run_pb2, subset_pb2
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


def test_starting_prints_lowered_defaults(relay: Relay, lipt: Any) -> None:
    # The default is 2 learners of 32 minibatches of 64, and the digits are 1,442.
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


def test_watching_prints_changes_until_a_run_is_ready_or_held(relay: Relay, lipt: Any) -> None:
    relay.every("GetRun", found(run_at(1, STATES[0])))
    relay.every(
        "WatchRun", watched(*(run_at(number, state) for number, state in enumerate(STATES, 1)))
    )
    result = lipt("run", "watch", "mine")
    assert result.exit_code == 0
    assert result.stdout == "run mine: pending\nrun mine: merging\nrun mine: ready\n"
    lines = lipt("run", "watch", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["pending", "merging", "ready"]
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
def test_interrupting_a_watch_prints_that_the_run_continues(
    relay: Relay, client: Client, tmp_path: Path, *, watch_alone: bool
) -> None:
    name = f"stopped-{int(watch_alone)}"
    command = ("run", "watch", name)
    if watch_alone:
        client.start_run(SMALLEST, name=name)
    else:
        command = ("run", "start", "--name", name, "--watch", "--num-learners", "2")
    arguments = ["-m", "lipt.cli", *command, "--coordinator", relay.address]
    process = LoggedProcess(arguments, tmp_path / "log", os.environ)
    process.wait_for(f"run {name}: training")
    assert process.stop(signal.SIGINT) == 130
    assert process.text().splitlines()[-3:] == [
        f"run {name} continues without this command.",
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


CREST = """
name: "crest" summary: "coresets of [random] sets" paper: "Yang et al. 2023" cost: "N + k C"
balanced_by_default: true returns_weights: true needs: "signals" needs: "validation split"
options { name: "norm" default_value: "last_layer" allowed_values: ["last_layer", "full"] }
options { name: "share" default_value: "0.01" allowed_values: "number > 0" help: "of a set" }
presets { name: "paper" summary: "as on CIFAR-10" }
"""
UNIFORM = """
name: "uniform" summary: "random examples" needs: "nothing" cost: "N"
default_proxy: "ridge:patches" works_without_labels: true
"""


def test_strategies_are_listed_with_needs_and_options(relay: Relay, lipt: Any) -> None:
    strategies = [text_format.Parse(text, subset_pb2.Strategy()) for text in (CREST, UNIFORM)]
    relay.every("ListStrategies", answer(subset_pb2.ListStrategiesResponse(strategies=strategies)))
    assert lipt("strategies").stdout.splitlines() == [
        "By gradients, with weights:",
        "  crest    coresets of [random] sets",
        "Without a model:",
        "  uniform  random examples",
        "Options, presets, costs and paper of one: lipt strategies NAME",
    ]
    assert lipt("strategies", "crest").stdout.splitlines() == [
        "crest: coresets of [random] sets",
        "  needs: signals and validation split",
        "  cost: N + k C",
        "  weights: yes",
        "  equal shares of classes by default: yes",
        "  works with --labels none: no",
        "  paper: Yang et al. 2023",
        "  --option norm=last_layer (one of last_layer, full)",
        "  --option share=0.01 (number > 0): of a set",
        "  --preset paper: as on CIFAR-10",
    ]
    assert "  proxy: ridge:patches" in lipt("strategies", "uniform").stdout.splitlines()
    unknown = lipt("strategies", "unifrom")
    assert unknown.exit_code == 2
    assert "there is no strategy 'unifrom'. Did you mean uniform?" in unknown.stderr
    assert json.loads(lipt("strategies", "crest", "--json").stdout)["paper"] == "Yang et al. 2023"
    first = json.loads(lipt("strategies", "--json").stdout)[0]
    assert first["options"][0]["name"] == "norm"
    assert first["presets"] == [{"name": "paper", "summary": "as on CIFAR-10"}]
    assert first["needs"] == ["signals", "validation split"]
    assert first["cost"] == "N + k C"


def test_without_a_coordinator_the_installed_strategies_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LIPT_COORDINATOR", raising=False)
    done = CliRunner().invoke(main, ["strategies"])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("strategies of this installation; --coordinator HOST:PORT")
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines if line[:1] == " "]
    assert sorted(names) == sorted(STRATEGIES)
    # Each on one line of a terminal, and all on one screen.
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 46
    start = lines.index("For a target, or by losses of theta*:") + 1
    of_theta = {name for name, one in STRATEGIES.items() if one.needs_of({}) & INITIAL_NEEDS}
    assert {line.split()[0] for line in lines[start : start + len(of_theta)]} == of_theta
    for name in STRATEGIES:
        about = CliRunner().invoke(main, ["strategies", name]).stdout.splitlines()
        assert max(map(len, about)) <= 80
    (first, *_) = json.loads(CliRunner().invoke(main, ["strategies", "--json"]).stdout)
    assert first == to_jsonable(describe()[0])


CREATED, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)
VALID = TokenView("0a1b2c3d", "ci", "trainer", CREATED, None, None, "me", scores=False)


@pytest.fixture
def token(client: Client) -> TokenView:
    return client.create_token("trainer", name="ci").token


def test_new_token_is_all_that_is_printed(relay: Relay, lipt: Any) -> None:
    result = lipt("token", "create", "--role", "trainer", "--name", "ci", "--days", "30")
    assert result.exit_code == 0, result.output
    (request,) = relay.requests_of(access_pb2.CreateTokenRequest)
    assert (request.role, request.name, request.days) == (access_pb2.ROLE_TRAINER, "ci", 30.0)
    with Client(relay.address, token=result.stdout.removesuffix("\n")) as holder:
        assert holder.who_am_i().roles == ("trainer",)


def test_tokens_are_listed_in_columns_and_can_be_revoked(lipt: Any, token: TokenView) -> None:
    header, *lines = lipt("token", "list").stdout.splitlines()
    assert header.split() == ["id", "name", "role", "state", "created", "by"]
    assert token.created_at is not None
    (line,) = (line for line in lines if line.startswith(token.token_id))
    created = f"{token.created_at.astimezone():%Y-%m-%d}"
    assert line.split()[:5] == [token.token_id, "ci", "trainer", "valid", created]
    assert line.endswith("the coordinator's own user")
    revoked = lipt("token", "revoke", token.token_id).stdout
    assert revoked == f"{token.token_id} (ci) is revoked\n"
    (line,) = (line for line in lipt("token", "list").stdout.splitlines() if token.token_id in line)
    assert "revoked" in line


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "now", "words"),
    [
        (None, None, LATER, "valid"),
        (LATER, None, CREATED, "valid until 2026-02-03"),
        (LATER, None, LATER, "expired 2026-02-03"),
        (LATER, CREATED, LATER, "revoked 2026-01-02"),
    ],
)
def test_a_token_s_state_is_in_words(
    expires_at: datetime | None, revoked_at: datetime | None, now: datetime, words: str
) -> None:
    shown = TokenView(
        **{**vars(VALID), "expires_at": expires_at, "revoked_at": revoked_at}  # type: ignore[arg-type]
    )
    assert token_state(shown, now) == words


def test_the_token_comes_from_the_file_or_the_environment(
    relay: Relay, client: Client, lipt: Any, tmp_path: Path
) -> None:
    one, other = (client.create_token("admin").secret for _ in range(2))
    relay.calls.clear()
    file = tmp_path / "token"
    file.write_text(one)
    typed, there = ("--token-file", str(file)), {"LIPT_TOKEN": other}
    assert lipt("token", "list", *typed).exit_code == 0
    assert lipt("token", "list", env={"LIPT_TOKEN_FILE": str(file)}).exit_code == 0
    assert lipt("token", "list", env=there).exit_code == 0
    # What was typed is meant, and no flag takes the token itself.
    assert lipt("token", "list", *typed, env=there).exit_code == 0
    assert lipt("token", "list", "--token", other).exit_code == 2
    shown = [call.authorization for call in relay.calls]
    assert shown == [f"Bearer {text}" for text in (one, one, other, one)]


LINK = re.compile(r"http://127\.0\.0\.1:\d+/sign-in\?code=\S+")


def test_the_link_is_printed_alone(lipt: Any) -> None:
    assert LINK.fullmatch(lipt("dashboard").output.removesuffix("\n"))


def test_a_page_on_another_machines_loopback_needs_a_tunnel() -> None:
    page = "http://127.0.0.1:50080/sign-in?code=c"
    assert tunnel_hint(page, "head:50051").endswith("ssh -L 50080:127.0.0.1:50080 head")
    assert tunnel_hint(page, "127.0.0.1:50051") == ""
    assert tunnel_hint("https://head:50080/sign-in?code=c", "head:50051") == ""


LOOPBACK = ["localhost", "127.0.0.1", "::1"]


@pytest.fixture
def certs(lipt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: lipt("certs", *arguments)


def said(result: Any) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_printed_commands_are_valid(certs: Any) -> None:
    lines = certs("init", "--host", "head").stdout.splitlines()
    flags, *commands = [shlex.split(line) for line in lines if line.startswith("    ")]
    assert flags[:2] == ["--tls-cert", "certs/coordinator.pem"]
    assert all(Path(path).is_file() for path in flags[1::2])
    for command in commands:
        assert command[:2] == ["lipt", "certs"]
        assert certs(*command[2:]).exit_code == 0


@pytest.mark.parametrize("role", Role)
def test_an_issued_certificate_has_name_and_role(certs: Any, role: Role) -> None:
    certs("init")
    made = said(certs(role, "gpu-1", "--json"))
    identity = identity_of({"x509_pem_cert": [Path(made["cert"]).read_bytes()]})
    assert identity is not None
    assert (made["cert"], identity.name, identity.roles) == ("certs/gpu-1.pem", "gpu-1", {role})
    assert Path(said(certs(role, "--json"))["cert"]) == Path(f"certs/{role}.pem")


def test_the_coordinator_s_certificate_is_made_anew_for_the_same_hosts(certs: Any) -> None:
    assert said(certs("init", "--json"))["hosts"] == [socket.gethostname(), *LOOPBACK]
    made = said(certs("init", "--force", "--host", "10.0.0.5", "--host", "::1", "--json"))
    assert Folder(Path("certs")).hosts("coordinator") == made["hosts"]
    assert made["hosts"] == ["10.0.0.5", "::1", "localhost", "127.0.0.1"]
    certs("init", "--force", "--host", "head")
    before = Path("certs/coordinator.pem").read_bytes()
    authority = Path("certs/ca.pem").read_bytes()
    assert "certs/coordinator.key is there already" in certs("coordinator").stderr
    assert said(certs("coordinator", "--force", "--json"))["hosts"] == ["head", *LOOPBACK]
    assert Path("certs/coordinator.pem").read_bytes() != before
    assert said(certs("coordinator", "--force", "--host", "new", "--json"))["hosts"][0] == "new"
    assert Path("certs/ca.pem").read_bytes() == authority


def test_a_refused_request_writes_no_file(certs: Any) -> None:
    assert "lipt certs init --folder certs" in certs("worker").stderr
    assert "is not a host's name" in certs("init", "--host", "head:50051").stderr
    assert not Path("certs").exists()
    assert certs("init", "--days", "0").exit_code == 2


def test_only_servers_get_server_certificates(certs: Any) -> None:
    certs("init")
    for flag in (("--host", "head"), ("--scores",)):
        refused = certs("trainer", *flag)
        assert refused.exit_code == 2
        assert flag[0] in refused.stderr
    assert said(certs("worker", "--scores", "--json"))["scores"] is True
    made = identity_of({"x509_pem_cert": [Path("certs/worker.pem").read_bytes()]})
    assert made is not None
    assert made.scores
    assert not Path("certs/trainer.key").exists()
