import json
from pathlib import Path
from typing import Any

import pytest

from tests.relay import Relay

QUICK = ("networks=1", "matches=2", "steps_between=1", "steps_before=1", "augmentation=none")


@pytest.fixture
def distill(lipt: Any, tmp_path: Path) -> Any:
    """Runs `lipt distill` on digits with settings that take a second."""

    def run(*arguments: str) -> Any:
        quick = (part for setting in QUICK for part in ("--set", setting))
        fixed = ("--data", "digits-train", "--model", "linear", "--device", "cpu")
        out = ("--out", str(tmp_path / "out")) if "--out" not in arguments else ()
        return lipt("distill", *fixed, *out, *quick, *arguments)

    return run


def test_images_are_made_and_can_be_trained_on(
    relay: Relay, distill: Any, lipt: Any, tmp_path: Path
) -> None:
    result = distill("--per-class", "2", "--stages", "2")
    assert result.exit_code == 0, result.stderr
    again = distill("--per-class", "2", "--stages", "2", "--json")
    printed = json.loads(again.stdout)
    assert (printed["images"], len(printed["stages"])) == (20, 2)
    out = tmp_path / "out"
    assert result.stdout.splitlines() == [
        f"20 images of 10 classes in 2 stages: {out}",
        f"train on them with: lipt train --data distilled:{out}",
    ]
    assert {file.name for file in out.iterdir()} == {
        "synthetic.safetensors",
        "manifest.json",
        "sheet.png",
    }
    command = ("--data", f"distilled:{out}", "--model", "resnet8", "--steps", "2")
    trained = lipt("train", *command, "--device", "cpu", "--log", str(tmp_path / "log"))
    assert trained.exit_code == 0, trained.stderr
    assert relay.calls == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--per-class", "0"), "per_class = 0: input should be greater than or equal to 1"),
        (("--per-class", "2", "--set", "epochs=1"), "epochs: there is no such setting"),
        (("--per-class", "2", "--later", "s.npy"), "give --stages, too"),
        (("--per-class", "2", "--out", "/nowhere/x"), "/nowhere is not a directory"),
        ((), "--per-class"),
    ],
)
def test_mistyped_commands_are_usage_errors(
    relay: Relay, distill: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    result = distill(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert relay.calls == []
