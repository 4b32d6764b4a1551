import json
import re
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from typer.testing import CliRunner

from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.core.selection.registry import STRATEGIES
from lipt.trainer.cli import main
from lipt.trainer.cli.commands import service
from lipt.trainer.cli.commands.service import token_state, tunnel_hint
from lipt.trainer.client.client import Client
from lipt.trainer.views import StrategyView, TokenView, view_of
from lipt.trainer.writing.formatting import to_jsonable
from lipt.v1 import access_pb2, info_pb2, subset_pb2
from tests.relay import Relay, answer, change
from tests.service import READY
from tests.trainer.cli.conftest import declared_entry_points

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


def test_strategies_are_listed_with_what_they_need_and_their_options(
    relay: Relay, lipt: Any
) -> None:
    strategies = [text_format.Parse(text, subset_pb2.Strategy()) for text in (CREST, UNIFORM)]
    relay.every("ListStrategies", answer(subset_pb2.ListStrategiesResponse(strategies=strategies)))
    assert lipt("strategies").stdout.splitlines() == [
        "crest: coresets of [random] sets",
        "    needs signals and validation split, with weights, balanced per class, cost N + k C",
        "    Yang et al. 2023",
        "    --option norm=last_layer (one of last_layer, full)",
        "    --option share=0.01 (number > 0): of a set",
        "    --preset paper: as on CIFAR-10",
        "uniform: random examples",
        (
            "    needs nothing, without weights, not balanced per class, cost N, "
            "proxy ridge:patches, works with --labels none"
        ),
    ]
    first = json.loads(lipt("strategies", "--json").stdout)[0]
    assert first["options"][0]["name"] == "norm"
    assert first["presets"] == [{"name": "paper", "summary": "as on CIFAR-10"}]
    assert first["needs"] == ["signals", "validation split"]
    assert first["cost"] == "N + k C"


def test_without_a_coordinator_the_installed_strategies_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "entry_points", declared_entry_points)
    monkeypatch.delenv("LIPT_COORDINATOR", raising=False)
    done = CliRunner().invoke(main, ["strategies"])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("strategies of this installation; --coordinator HOST:PORT")
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if line[:1] != " "]
    assert names == list(STRATEGIES)
    (first, *_) = json.loads(CliRunner().invoke(main, ["strategies", "--json"]).stdout)
    assert first == to_jsonable(view_of(StrategyView, describe_strategies().strategies[0]))


CREATED, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)
VALID = TokenView("0a1b2c3d", "ci", "trainer", CREATED, None, None, "me")


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
def test_state_of_a_token_is_said_in_words(
    expires_at: datetime | None, revoked_at: datetime | None, now: datetime, words: str
) -> None:
    shown = TokenView(
        **{**vars(VALID), "expires_at": expires_at, "revoked_at": revoked_at}  # type: ignore[arg-type]
    )
    assert token_state(shown, now) == words


def test_token_is_shown_that_the_file_or_the_environment_has(
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


def test_the_link_is_printed_alone_and_opened_where_asked(lipt: Any, opened: list[str]) -> None:
    result = lipt("dashboard", "--open")
    assert LINK.fullmatch(result.output.removesuffix("\n"))
    assert opened == [result.output.removesuffix("\n")]


@pytest.mark.parametrize("address", ["file:///etc/passwd", "javascript:alert(1)", "--help"])
def test_what_is_no_page_is_not_opened(
    relay: Relay, lipt: Any, opened: list[str], address: str
) -> None:
    relay.next("OpenPage", change(lambda answer: setattr(answer, "url", address)))
    result = lipt("dashboard", "--open")
    assert result.exit_code == 1
    assert "is no address of a page" in result.stderr
    assert opened == []


def test_a_page_on_another_machines_loopback_needs_a_tunnel() -> None:
    page = "http://127.0.0.1:50080/sign-in?code=c"
    assert tunnel_hint(page, "head:50051").endswith("ssh -L 50080:127.0.0.1:50080 head")
    assert tunnel_hint(page, "127.0.0.1:50051") == ""
    assert tunnel_hint("https://head:50080/sign-in?code=c", "head:50051") == ""


def hostile(view: info_pb2.WatchServiceResponse) -> None:
    view.workers.add(worker_id="w", name="box\x1b[31m", device="cpu")


def test_it_is_printed_once_where_there_is_no_terminal(relay: Relay, lipt: Any) -> None:
    relay.next("WatchService", change(hostile))
    result = lipt("top")
    assert result.exit_code == 0
    assert READY in result.stdout
    assert "box\\x1b[31m" in result.stdout
