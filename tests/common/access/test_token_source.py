from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.access.tokens import Token, TokenSource
from lipt.common.errors import ConfigError

ONE, OTHER = Token.draw("one").text, Token.draw("other").text


def test_text_is_the_token_itself() -> None:
    source = TokenSource.from_options(None, ONE)
    assert source is not None
    assert source.read() == ONE
    assert ONE not in repr(source)


def test_file_is_read_anew_and_wins_over_the_text(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ONE}\n")
    source = TokenSource.from_options(file, OTHER)
    assert source is not None
    assert source.read() == ONE
    file.write_text(OTHER)
    assert source.read() == OTHER


def test_what_is_no_token_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LIPT_TOKEN holds no token.*lipt token create") as text:
        TokenSource.from_options(None, "password")
    assert "password" not in str(text.value)
    file = tmp_path / "token"
    file.write_text("password")
    with pytest.raises(ConfigError, match=r"--token-file .*token holds no token") as content:
        TokenSource.from_options(file, None)
    assert "password" not in str(content.value)


def test_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none cannot be read: No such file.*lipt token create"):
        TokenSource.from_options(tmp_path / "none", None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="bytes cannot be read: it is not text"):
        TokenSource.from_options(tmp_path / "bytes", None)
