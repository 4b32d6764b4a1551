import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.cli import app, main
from tests.relay import Relay
from tests.remembered_spans import remembering


def test_a_program_exits_cleanly_with_a_thread_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    @contextmanager
    def process_exit() -> Iterator[None]:
        entered.append("leaving")
        yield

    monkeypatch.setattr(app, "process_exit", process_exit)
    monkeypatch.setattr(app, "main", lambda **_: entered.append("main"))
    app.program()
    assert entered == ["leaving", "main"]


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("strategies", "--json"), "lipt strategies"),
        (("run", "start", "--help"), "lipt run start"),
        # What a user made up is no name of a span.
        (("certs", "init", "--help", "secret"), "lipt certs init"),
    ],
)
def test_a_command_is_a_span_with_its_name(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], name: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    monkeypatch.setattr(sys, "argv", ["lipt", *arguments])
    with remembering() as spans:
        assert CliRunner().invoke(main, arguments).exit_code == 0
    assert spans.names() == [name]
    assert spans[name].status.status_code.name == "UNSET"
    parent = spans[name].parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)


COMMANDS = [
    [],
    *(["run", command] for command in ("start", "list", "show", "watch", "cancel")),
    *(["certs", command] for command in ("init", "coordinator", "worker", "trainer", "admin")),
    *(["subset", "get"], ["weights", "get"], ["run"], ["subset"], ["certs"]),
    *([name] for name in ("demo", "strategies", "check", "diagnose", "doctor", "train", "plan")),
    *([name] for name in ("distill", "up", "compare", "report")),
]

# Asks for the help of one command after another, in a process that has done nothing else, and
# prints of each the text and which of the slow packages it has imported. pydantic is typer's
# own choice.
SCRIPT = """
import contextlib, io, json, sys
from lipt.cli import main
slow, known, told = {"torch", "grpc", "google.protobuf", "numpy", "rich.console"}, set(), []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main([*command, "--help"], prog_name="lipt")
    told.append([text.getvalue(), sorted((slow & set(sys.modules)) - known)])
    known |= slow & set(sys.modules)
print(json.dumps(told))
"""


def test_help_imports_nothing_slow(tmp_path: Path) -> None:
    # Plug-ins are found by what is installed, not by what an older build left in a checkout.
    script = [sys.executable, "-c", SCRIPT, json.dumps(COMMANDS)]
    printed = subprocess.check_output(script, text=True, timeout=60, cwd=tmp_path)
    for command, (text, slow) in zip(COMMANDS, json.loads(printed), strict=True):
        assert " ".join(["Usage: lipt", *command]) in text
        assert (command, slow) == (command, [])


DATA = ("--data", "digits-train", "--model", "resnet8")
COMPARE = ("compare", *DATA, "--test", "digits-test")
TRAIN, SELECT = ("train", *DATA), ("select", "d")
CRAIG = (*TRAIN, "--strategy", "craig", "--fraction", "0.1")
RESAMPLED = (*TRAIN, "--resample", "--fraction", "0.1")
REPORT = ("report", "--data", "digits-train")
DISTILL = ("distill", "--data", "digits-train", "--model", "linear", "--out", "x")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "start", "--set", "learners.num_steps"), "is not NAME=VALUE"),
        (("run", "start", "--config", "/nowhere/run.toml"), "cannot be read"),
        (("subset", "get", "--out", "x.npy"), "give one of --fraction and --budget"),
        (("subset", "get", "--out", "x.txt", "--fraction", "0.1"), ".npy, .json, .csv"),
        (("subset", "get", "--out", "/nowhere/x.npy", "--budget", "3"), "not a directory"),
        (("weights", "get", "--out", "/nowhere/w.safetensors"), "not a directory"),
        (("weights", "get", "--out", "w.safetensors", "--kind", "final"), "pretrained"),
        ((*COMPARE, "--strategies", "a", "--fractions", "0.1,much"), "'0.1,much' is not numbers"),
        ((*COMPARE, "--strategies", "a", "--fractions", "0,0.1"), "a fraction is in (0, 1]"),
        ((*COMPARE, "--strategies", " , "), "give at least one name, e.g. craig,grand"),
        ((*COMPARE, "--strategies", "a", "--set", "learning_rate=fast"), "learning_rate"),
        ((*REPORT, "--strategies", ","), "give at least one name"),
        ((*REPORT, "--fraction", "2"), "less than or equal to 1"),
        ((*REPORT, "--out", "/nowhere/report.html"), "/nowhere is not a directory"),
        ((*REPORT, "--comparison", "a", "--out", "a"), "--comparison and --out are both a"),
        (("track",), "give --mlflow EXPERIMENT, --wandb PROJECT"),
        (("track", "--mlflow", "x", "--fraction", "2"), "less than or equal to 1"),
        ((*DISTILL, "--per-class", "0"), "per_class = 0: input should be greater than or equal"),
        ((*DISTILL, "--per-class", "2", "--set", "epochs=1"), "epochs: there is no such setting"),
        ((*DISTILL, "--per-class", "2", "--later", "s.npy"), "give --stages, too"),
        ((*DISTILL, "--per-class", "2", "--out", "/nowhere/x"), "/nowhere is not a directory"),
        (DISTILL, "--per-class"),
        (("diagnose", "--export", "issues.xlsx"), "issues.xlsx is not a .csv file"),
        (("diagnose", "--export", "/nowhere/issues.csv"), "not a directory"),
        (("diagnose", "--out", "/nowhere/page.html"), "not a directory"),
        (("diagnose", "--out", "/nowhere/folder"), "/nowhere is not a directory"),
        ((*TRAIN, "--set", "learning_rat=0.1"), "learning_rat: there is no such setting"),
        ((*TRAIN, "--steps", "0"), "steps = 0"),
        ((*TRAIN, "--init", "random"), "'random' is not one of 'scratch', 'initial', 'pretrained'"),
        ((*TRAIN, "--out", "/nowhere/w.safetensors"), "/nowhere is not a directory"),
        ((*TRAIN, "--out", "w", "--checkpoint", "w"), "--checkpoint and --out are both w"),
        ((*CRAIG, "--option", "a"), "is not NAME=VALUE"),
        ((*TRAIN, "--strategy", "craig"), "give one of --fraction and --budget"),
        ((*CRAIG, "--subset", "s.npy"), "--subset and --strategy were both"),
        ((*TRAIN, "--every", "5"), "--every was given without --strategy"),
        ((*TRAIN, "--fraction", "0.1"), "--fraction was given without --strategy or --resample"),
        ((*CRAIG, "--resample"), "--strategy and --resample were both"),
        ((*RESAMPLED, "--option", "a=1"), "--option was given without --strategy"),
        ((*SELECT, "--out", "s.npy"), "give one of --fraction and --budget"),
        ((*SELECT, "--fraction", "0.1", "--out", "s.txt"), ".txt"),
        ((*SELECT, "--fraction", "0.1", "--out", "/nowhere/s.npy"), "/nowhere is not a directory"),
        ((*SELECT, "--fraction", "0.1"), "--out"),
    ],
)
def test_mistyped_commands_are_usage_errors(
    relay: Relay,
    lipt: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = lipt(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert relay.calls == []
    assert list(tmp_path.iterdir()) == []


# Ends where torch would be loaded, and prints what is decided by then.
THREADS_SCRIPT = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
from lipt.cli import main
main(sys.argv[1:], prog_name="lipt")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "chosen", "found"),
    [
        (("train",), {}, "PASSIVE"),
        (("compare", "--test", "digits-test", "--strategies", "craig"), {}, "PASSIVE"),
        (("train",), {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
    ],
)
def test_threads_wait_passively_by_default(
    command: tuple[str, ...], chosen: dict[str, str], found: str
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    script = [sys.executable, "-c", THREADS_SCRIPT, *command, *DATA]
    printed = subprocess.check_output(script, text=True, timeout=60, env=inherited | chosen)
    assert printed == f"{found}\n"


def test_the_help_has_groups_of_whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for group in ([], ["run"], ["subset"], ["weights"], ["token"], ["certs"], ["state"]):
        text = CliRunner().invoke(main, [*group, "--help"]).stdout
        assert "..." not in text.removeprefix("Usage:").partition("[ARGS]...")[2]
        assert max(map(len, text.splitlines())) <= 80
    text = CliRunner().invoke(main, ["--help"]).stdout
    headings = [line for line in text.splitlines() if line.endswith(":") and line[:1] != " "]
    assert headings == [
        "Options:",
        "Data:",
        "Runs and their subsets:",
        "Main training:",
        "The service:",
    ]
    assert "  select      Select the examples worth training on, without a coordinator.\n" in text


def test_commands_of_other_rooms_are_imported_on_demand(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["state", "check", "--state-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"lipt: there is no state in {tmp_path}")
    assert "Traceback" not in done.output
