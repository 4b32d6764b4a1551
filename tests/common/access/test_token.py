from __future__ import annotations

import hashlib

import pytest

from lipt.common.access.tokens import Token

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
