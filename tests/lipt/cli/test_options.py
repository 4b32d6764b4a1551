import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from lipt.cli.options import (
    collect_overrides,
    grouped,
    modules_of,
    parse_names,
    parse_options,
    require_apart,
    require_place,
    require_replaceable,
)
from lipt.common.access.tokens import Token
from lipt.common.config.run_config import PRESETS, merge
from lipt.trainer.client.client import Client
from tests.relay import Relay
from tests.service import Service


def test_a_named_module_is_allowed() -> None:
    named = modules_of(None, "mine:data", None, "digits", "imagefolder:/data", "shop.nets:model")
    assert named == ("mine", "shop.nets")
    assert modules_of(["other"], "mine:data") == ("other", "mine")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_coordinator_that_comes_up_late_is_waited_for(service: Service, free_port: int) -> None:
    told: list[str] = []
    with ExitStack() as stack, Client(f"127.0.0.1:{free_port}") as client:

        def come_up(why: str) -> None:
            told.append(why)
            if len(told) == 1:
                stack.enter_context(Relay(service.address, port=free_port))

        client.reach(60.0, on_pause=come_up)
    assert told
    assert "no coordinator answers at" in told[0]


def test_a_refusing_coordinator_is_not_waited_for(relay: Relay, lipt: Any) -> None:
    token = {"LIPT_TOKEN": Token.draw("0a1b2c3d").text}
    refused = lipt("run", "list", "--wait", "60", env=token)
    assert refused.exit_code == 1
    assert "token" in refused.stderr
    assert lipt("run", "list", env={"LIPT_WAIT": "60"}).exit_code == 0
    assert len(relay.calls) == 4  # each asked whether it is there, and then for runs


app = typer.Typer()


@dataclass(frozen=True)
class Place:
    """A group."""

    host: Annotated[str, typer.Option("--host", "-h", help="Which machine.")]
    port: Annotated[int, typer.Option(envvar="PLACE_PORT")] = 80


@app.command()
@grouped
def visit(name: str, *, place: Place, twice: bool = False) -> None:
    """Go there."""
    typer.echo(f"{name} {place} {twice}")


def test_option_groups_are_expanded_in_the_help() -> None:
    result = CliRunner().invoke(app, ["me", "-h", "here", "--port", "1", "--twice"])
    assert result.stdout == "me Place(host='here', port=1) True\n"
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "Go there." in text
    places = [text.index(word) for word in ("--host", "Which machine.", "--port", "--twice")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("learners.num_steps=5", 5),
        ("learners.learning_rate=5e-2", 0.05),
        ("soup.reestimate_batch_norm=false", False),
        ("model=resnet8", "resnet8"),
        ('model="resnet8"', "resnet8"),
        ("model=torchvision:wide_resnet50_2", "torchvision:wide_resnet50_2"),
        ("model=a=b", "a=b"),
        ("model= resnet8 ", "resnet8"),
        ("model=", ""),
        ("model=a\nb=2", "a\nb=2"),
    ],
)
def test_values_are_read_as_toml_or_as_text(text: str, value: Any) -> None:
    found = collect_overrides({}, [text])
    for part in text.partition("=")[0].split("."):
        found = found[part]
    assert found == value


def test_options_stay_text_and_names_have_commas_between_them() -> None:
    for text in ("learners.num_steps", "=5", "learners.=5", ".num_steps=5", ""):
        with pytest.raises(typer.BadParameter, match="is not NAME=VALUE"):
            parse_options([text])
    assert parse_options(["norm = full", "size=1"]) == {"norm": "full", "size": "1"}
    assert parse_names(" craig,grand ,") == ("craig", "grand")
    with pytest.raises(typer.BadParameter, match=r"' , ' names nothing: give at least one name"):
        parse_names(" , ")


def test_flags_and_assignments_override_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'listen = "x:1"\n[run]\nmodel = "resnet18"\nseed = 1\n'
        "[run.learners]\nnum_steps = 3\nbatch_size = 64\n"
    )
    flags = {"model": "resnet8", "seed": None, "learners.num_steps": 7}
    assert collect_overrides(flags, ["learners.momentum=0.5"], config) == {
        "model": "resnet8",
        "seed": 1,
        "learners": {"num_steps": 7, "batch_size": 64, "momentum": 0.5},
    }


def test_a_preset_is_overridden_by_the_user(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[run.soup]\nnum_alphas = 4\n[run.learners]\nnum_steps = 3\n")
    found = collect_overrides({"learners.num_steps": 7}, ["seed=2"], config, "paper")
    over = {"seed": 2, "soup": {"num_alphas": 4}, "learners": {"num_steps": 7}}
    assert found == merge(PRESETS["paper"], over)
    assert (found["soup"]["method"], found["learners"]["batch_size"]) == ("interpolation", 256)
    with pytest.raises(typer.BadParameter, match=r"no preset 'cifar' of a run\. Choose .*: paper"):
        collect_overrides({}, [], None, "cifar")


@pytest.mark.parametrize(
    ("flags", "assignments", "complaint"),
    [
        ({"seed": 1}, ["seed=2"], "seed was given twice: 1 and 2"),
        ({}, ["seed=1", "seed=1"], "seed was given twice"),
        ({}, ["learners=1", "learners.num_steps=2"], "a value, so it is no group"),
        ({}, ["learners.num_steps=2", "learners=1"], "learners is a group, .* too. Drop one"),
    ],
)
def test_contradictions_fail(flags: dict[str, Any], assignments: list[str], complaint: str) -> None:
    with pytest.raises(typer.BadParameter, match=complaint):
        collect_overrides(flags, assignments)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [('model = "resnet8"', r"has no \[run\] table"), ("[run", "cannot be read as")],
)
def test_a_file_without_a_run_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    with pytest.raises(typer.BadParameter, match=complaint):
        collect_overrides({}, [], config)


def test_output_files_need_a_writable_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(typer.BadParameter, match=r"is a directory\. Name a file in it"):
        require_replaceable(tmp_path)
    with pytest.raises(typer.BadParameter, match=r"none is not a directory\. Make it first"):
        require_place(tmp_path / "none" / "file")
    # Root may write everywhere, so permissions alone would not show it.
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))
    with pytest.raises(typer.BadParameter, match="cannot be written to"):
        require_place(tmp_path / "file")
    require_place(Path(os.devnull))
    with pytest.raises(typer.BadParameter, match=r"null is not a regular file"):
        require_replaceable(Path(os.devnull))
    one, same = tmp_path / "one", tmp_path / "x" / ".." / "one"
    require_apart({"--out": one, "--log": tmp_path / "other", "--checkpoint": None})
    with pytest.raises(typer.BadParameter, match=r"--out and --log are both .*one\. Name two"):
        require_apart({"--out": one, "--log": same})
