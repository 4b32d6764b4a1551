"""`lipt train --redraw`: other examples for every epoch, without a coordinator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.relay import Relay
from tests.trainer.cli.conftest import log_of


@pytest.mark.parametrize("redraw", ["random", "stale"])
def test_every_epoch_has_other_examples_and_the_steps_are_a_fixed_subsets(
    relay: Relay, train: Any, tmp_path: Path, redraw: str
) -> None:
    result = train("--redraw", redraw, "--budget", "40", "--epochs", "4", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_steps"] == 12  # batches of 16, 16 and 8
    records = log_of(tmp_path)
    assert [record["num_examples"] for record in records] == [40] * 4
    assert len({record["subset_digest"] for record in records}) == 4
    assert relay.calls == []


def test_infobatch_begins_with_everything(train: Any, tmp_path: Path) -> None:
    result = train("--redraw", "infobatch", "--fraction", "0.1", "--epochs", "11")
    assert result.exit_code == 0, result.stderr
    # A tenth is 144 examples, nine steps an epoch.
    assert result.stdout.startswith("99 steps in ")
    assert result.stdout.endswith("% on the last epoch's examples\n")
    assert log_of(tmp_path)[0]["num_examples"] == 1442


def test_options_reach_the_draws(train: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    given = ("--redraw", "stale", "--budget", "40", "--epochs", "1", "--checkpoint", str(path))
    assert train(*given, "--option", "hardest_out=0.05").exit_code == 0
    result = train(*given)
    assert result.exit_code == 1
    assert "its selection.hardest_out is 0.05, now it is 0.0." in result.stderr
    result = train(*given, "--redraw", "infobatch")
    assert "its selection.redraw is 'stale', now it is 'infobatch'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--redraw", "often", "-f", "0.1"), "'often' is not one of"),
        (("--redraw", "random"), "give one of --fraction and --budget"),
        (("--redraw", "random", "-f", "0.1", "-k", "3"), "give one of --fraction and --budget"),
        (("--redraw", "random", "-f", "0.1", "-s", "craig"), "--strategy and --redraw were both"),
        (
            ("--redraw", "random", "-f", "0.1", "--subset", "s.npy"),
            "--subset and --redraw were both",
        ),
        (("--redraw", "random", "-f", "0.1", "--every", "3"), "--every was given without"),
        (("--redraw", "random", "-f", "0.1", "--prefetch"), "--prefetch was given without"),
        (("--redraw", "random", "-f", "0.1", "--option", "a=1"), "a: there is no such setting"),
        (("--redraw", "stale", "-f", "0.1", "--option", "pool=0"), "pool = '0'"),
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


def test_a_budget_beyond_the_data_is_refused(train: Any) -> None:
    result = train("--redraw", "random", "--budget", "1443")
    assert result.exit_code == 1
    assert "budget 1443 is outside 1..1442" in result.stderr
