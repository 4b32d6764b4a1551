import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.cli import main
from lipt.cli import options as shared
from lipt.cli.commands.service import Check, coordinator_checks, local_checks
from lipt.common.config.run_config import RunConfig
from lipt.trainer.client.client import Client
from lipt.trainer.views import DatasetView, InfoView, WorkerView
from tests.relay import Relay

WORKER = WorkerView("w", "worker-1", "cpu", {"torch": "2.15.0"}, "demo/3", 1.0)
DATASET = DatasetView("digits", 1797, ("0", "1"), (900, 897), "abc", (1, 8, 8))
INFO = InfoView((1, 0), {"torch": "2.15.0"}, "cpu", DATASET, RunConfig(), (WORKER,))


def check(name: str, protocol: tuple[int, int] = (1, 0), **changes: Any) -> Check:
    """The check of that name of a healthy coordinator with some changes."""
    info, versions = replace(INFO, **changes), {"torch": "2.15.0"}
    found = coordinator_checks(info, protocol=protocol, versions=versions)
    (only,) = [check for check in found if check.name == name]
    return only


def test_protocols_must_match_and_versions_are_noted() -> None:
    checks = coordinator_checks(INFO, protocol=(1, 0), versions={"torch": "2.15.0"})
    assert [(check.name, check.ok) for check in checks] == [
        ("protocol", True),
        ("coordinator", True),
        ("data", True),
        ("worker worker-1", True),
    ]
    assert check("protocol", (1, 3)).ok
    assert "Update the coordinator" in check("protocol", (2, 0)).remedy
    ours_is_old = check("protocol", (0, 4))
    assert ours_is_old.ok is False
    assert "Update this side" in ours_is_old.remedy
    note = check("versions", workers=(replace(WORKER, versions={"torch": "2.11.0"}),))
    assert note.ok is None
    assert note.detail == (
        "torch differs: this side 2.15.0, the coordinator 2.15.0, worker worker-1 2.11.0"
    )


def test_missing_data_fails_and_missing_silent_or_unfit_workers_are_noted() -> None:
    assert check("data", dataset=None).ok is False
    assert "--data" in check("data", dataset=replace(DATASET, num_examples=0)).remedy
    note = check("workers", workers=())
    assert note.ok is None
    assert "lipt-worker --coordinator" in note.remedy
    silent = replace(WORKER, seconds_since_last_call=61.0)
    assert check("worker worker-1", workers=(silent,)).ok is None
    reason = "cannot train run r: it does not allow `mine` (--allow-module mine)"
    idle = replace(WORKER, assignment="", idle_reason=reason)
    note = check("worker worker-1", workers=(idle,))
    assert note.ok is None
    assert note.detail == f"cpu, idle, heard 1 s ago; it {reason}"
    assert "that flag" in note.remedy


def test_the_doctor_shows_its_token_and_names_a_refusal(
    relay: Relay, client: Client, lipt: Any, tmp_path: Path
) -> None:
    given = client.create_token("trainer", name="ci")
    file, token_id = tmp_path / "token", given.token.token_id
    file.write_text(given.secret)
    result = lipt("doctor", "--token-file", str(file))
    assert f"access: called as the token {token_id} (ci): trainer." in result.stdout
    assert {call.authorization for call in relay.calls[1:]} == {f"Bearer {given.secret}"}
    client.revoke_token(token_id)
    result = lipt("doctor", "--token-file", str(file))
    assert result.exit_code == 1
    assert f"FAILED coordinator: the token {token_id} (ci) was revoked" in result.stdout


def test_missing_extras_and_classes_without_examples_are_noted() -> None:
    _, note, _ = local_checks({"lipt": "0.1.0"})
    assert str(note) == (
        "note   installed: scikit-learn is not, and only lipt[demo] needs it. pip install '.[demo]'"
    )
    named = replace(DATASET, class_names=("ant", "bee"), class_counts=(0, 9))
    found = check("data", dataset=named)
    assert found.ok is None
    assert "1 of its 2 classes have no example: ant" in found.detail
    numbered = replace(DATASET, class_names=("0", "1", "2"), class_counts=(0, 900, 897))
    told = check("data", dataset=numbered).detail
    assert "its labels begin at 1, and classes are counted from 0" in told


def test_the_doctor_passes_with_a_coordinator(relay: Relay, lipt: Any) -> None:
    result = lipt("doctor")
    assert result.exit_code == 0, result.stdout
    assert "data: digits-train, 1442 examples of 10 classes, 1x8x8 images" in result.stdout
    assert "FAILED" not in result.stdout
    report = json.loads(lipt("doctor", "--json").stdout)
    assert report["healthy"]
    assert report["coordinator"] == relay.address
    assert {"name", "ok", "detail", "remedy"} == set(report["checks"][0])


@pytest.mark.parametrize("answers", [False, True])
def test_the_doctor_passes_in_process_and_names_what_it_did_not_look_at(
    monkeypatch: pytest.MonkeyPatch, dead_address: str, stranger: str, answers: bool
) -> None:
    # Nobody has named what is at the default address, a coordinator or not.
    monkeypatch.delenv("LIPT_COORDINATOR", raising=False)
    address = stranger if answers else dead_address
    connect = shared.Coordinator.connect
    monkeypatch.setattr(
        shared.Coordinator, "connect", lambda self: connect(replace(self, address=address))
    )
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[-1] == (
        f"note   coordinator: none is named, and none {'is of use' if answers else 'answers'} at "
        "127.0.0.1:50051: connection, roles, data and workers were not looked at. "
        "Name one: lipt doctor --coordinator HOST:PORT"
    )
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)["healthy"]


def test_the_doctor_fails_with_a_remedy_without_a_coordinator(
    lipt: Any, dead_address: str, stranger: str
) -> None:
    for address, told in (
        (dead_address, f"FAILED connection: no coordinator answers at {dead_address}"),
        (stranger, "not a LiPT coordinator"),
    ):
        result = lipt("doctor", "--coordinator", address)
        assert result.exit_code == 1
        assert told in result.stdout
        assert ". Check " in result.stdout
    assert not json.loads(lipt("doctor", "--coordinator", stranger, "--json").stdout)["healthy"]
