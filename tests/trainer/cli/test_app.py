from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from lipt.trainer.cli import app, main
from tests.remembered_spans import Remembered, remembering


def test_a_program_that_ends_with_a_thread_in_torch_leaves_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[str] = []

    @contextmanager
    def leaving() -> Iterator[None]:
        entered.append("leaving")
        yield

    monkeypatch.setattr(app, "leaving", leaving)
    monkeypatch.setattr(app, "main", lambda **_: entered.append("main"))
    app.program()
    assert entered == ["leaving", "main"]


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spans_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Remembered:
    monkeypatch.setattr(sys, "argv", ["lipt", *arguments])
    with remembering() as spans:
        assert CliRunner().invoke(main, arguments).exit_code == 0
    return spans


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
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    spans = spans_of(monkeypatch, *arguments)
    assert spans.names() == [name]
    assert spans[name].status.status_code.name == "UNSET"


def test_a_command_that_is_refused_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    arguments = ("run", "list", "--coordinator", "nowhere")
    monkeypatch.setattr(sys, "argv", ["lipt", *arguments])
    with remembering() as spans:
        assert CliRunner().invoke(main, arguments).exit_code == 1
    assert spans["lipt run list"].attributes == {"error.type": "INVALID_CONFIG"}


def test_a_command_is_within_what_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    parent = spans_of(monkeypatch, "strategies", "--json")["lipt strategies"].parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)


def test_a_command_is_none_where_nothing_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert spans_of(monkeypatch, "strategies", "--json").names() == []
