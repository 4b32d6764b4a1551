from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lipt.trainer.cli import app


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
