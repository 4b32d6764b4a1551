from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lipt.common.access.tokens import Token, TokenSource
from lipt.common.errors import ConfigError

TEXT = "lipt_0a1b2c3d_" + "5" * 64


def test_token_is_read_from_a_line_with_white_space_around_it() -> None:
    token = Token.parse(f" {TEXT}\n")
    assert token is not None
    assert (token.token_id, token.text) == ("0a1b2c3d", TEXT)
    assert token.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lipt",
        TEXT[:-1],
        TEXT + "5",
        TEXT.replace("5", "A"),
        TEXT.replace("lipt", "LIPT"),
        TEXT.replace("0a1b2c3d", ""),
        TEXT.replace("0a1b2c3d", "0a 1b"),
        f"{TEXT}\n{TEXT}",
        "é" * 78,
    ],
)
def test_other_texts_are_no_token(text: str) -> None:
    assert Token.parse(text) is None


def test_drawn_tokens_are_read_back_and_differ() -> None:
    one, other = Token.draw("admin"), Token.draw("admin")
    assert Token.parse(one.text) == one
    assert one.text != other.text


def test_secret_is_not_in_what_is_printed_of_a_token() -> None:
    token = Token.draw("admin")
    assert "lipt_" not in f"{token} {token!r}"


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
