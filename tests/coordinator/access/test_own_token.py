from __future__ import annotations

from pathlib import Path

import pytest

from lipt.coordinator.access import tokens
from lipt.coordinator.access.tokens import OWN_FILE, keep_own_token


def test_token_stays_the_same_and_is_its_user_s_alone(tmp_path: Path) -> None:
    token = keep_own_token(tmp_path)
    assert token.token_id == "admin"
    assert keep_own_token(tmp_path) == token
    assert (tmp_path / OWN_FILE).read_text() == f"{token.text}\n"
    assert (tmp_path / OWN_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [OWN_FILE]


def test_another_is_made_where_it_was_deleted(tmp_path: Path) -> None:
    token = keep_own_token(tmp_path)
    (tmp_path / OWN_FILE).unlink()
    assert keep_own_token(tmp_path) != token


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", f"lipt_other_{64 * '0'}".encode()])
def test_file_that_holds_no_own_token_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OWN_FILE).write_bytes(content)
    token = keep_own_token(tmp_path)
    assert (tmp_path / OWN_FILE).read_text() == f"{token.text}\n"


def test_full_disk_costs_no_more_than_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens, "write_all", refuse)
    token = keep_own_token(tmp_path)
    assert token.token_id == "admin"
    assert "admin.token cannot be written: No space left" in caplog.text
    assert token.text not in caplog.text
    assert list(tmp_path.iterdir()) == []
