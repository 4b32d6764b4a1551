"""What all commands have in common: how mistakes and refusals look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.relay import Relay

COMPARE = ("compare", "--data", "digits-train", "--test", "digits-test", "--model", "resnet8")
REPORT = ("report", "--data", "digits-train")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "start", "--set", "learners.num_steps"), "is not NAME=VALUE"),
        (("run", "start", "--num-steps", "5", "--set", "learners.num_steps=6"), "given twice"),
        (("run", "start", "--num-steps", "five"), "--num-steps"),
        (("run", "start", "--config", "/nowhere/run.toml"), "cannot be read"),
        (("subset", "get", "--out", "x.npy"), "give one of --fraction and --budget"),
        (("subset", "get", "--out", "x.txt", "--fraction", "0.1"), ".npy, .csv, .json, .parquet"),
        (("subset", "get", "--out", "/nowhere/x.npy", "--budget", "3"), "not a directory"),
        (("subset", "get", "--fraction", "0.1"), "--out"),
        (("subset", "get", "-o", "x.npy", "-k", "3", "--option", "a"), "is not NAME=VALUE"),
        (("weights", "get", "--out", "/nowhere/w.safetensors"), "not a directory"),
        (("weights", "get", "--out", "w.safetensors", "--kind", "final"), "pretrained"),
        (("run", "cancel"), "RUN"),
        (("subset", "get", "-k", "3", "-o", "."), "'.' has the suffix ''; a subset is written as"),
        (
            ("subset", "get", "-o", "x.npy", "-k", "3", "--option", "a=1", "--option", "a=2"),
            "twice",
        ),
        (("weights", "get", "--out", "."), ". is a directory. Name a file in it."),
        ((*COMPARE, "--strategies", "a", "--fractions", "0.1,much"), "'0.1,much' is not numbers"),
        ((*COMPARE, "--strategies", "a", "--fractions", "0,0.1"), "a fraction is in (0, 1]"),
        ((*COMPARE, "--strategies", " , "), "give at least one name, e.g. craig,grand"),
        ((*COMPARE, "--strategies", "a", "--set", "learning_rate=fast"), "learning_rate"),
        ((*COMPARE, "--strategies", "a", "--seeds", "0"), "--seeds"),
        ((*COMPARE, "--strategies", "a", "--out", "/nowhere/c.jsonl"), "not a directory"),
        ((*COMPARE, "--strategies", "a", "--out", "."), ". is a directory. Name a file in it."),
        ((*REPORT, "--strategies", ","), "give at least one name"),
        ((*REPORT, "--fraction", "0"), "0.0 is not in (0, 1]"),
        ((*REPORT, "--out", "/nowhere/report.html"), "/nowhere is not a directory"),
        ((*REPORT, "--out", "."), ". is a directory. Name a file in it."),
        ((*REPORT, "--comparison", "a", "--out", "a"), "--comparison and --out are both a"),
    ],
)
def test_mistyped_commands_are_usage_errors(
    relay: Relay, lipt: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    result = lipt(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert relay.calls == []


def test_a_refusal_is_one_sentence_without_a_traceback(lipt: Any) -> None:
    result = lipt("run", "show", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("lipt: there is no run 'x'; the newest are: ")
    assert result.stderr.count("\n") == 1


def test_nobody_at_the_address_is_one_sentence(lipt: Any, dead_address: str) -> None:
    result = lipt("strategies", "--coordinator", dead_address)
    assert result.exit_code == 1
    assert f"lipt: no coordinator answers at {dead_address}" in result.stderr


def test_tls_options_are_checked(lipt: Any, tmp_path: Path) -> None:
    result = lipt("run", "list", "--tls-ca", str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert "is not a file" in result.stderr
    result = lipt("run", "list", env={"LIPT_TLS_CERT": str(tmp_path)})
    assert "--tls-cert was given without --tls-key" in result.stderr
