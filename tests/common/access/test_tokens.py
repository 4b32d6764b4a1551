import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lipt.common.access import tokens
from lipt.common.access.tokens import Token, TokenSource, find_local_token, published
from lipt.common.errors import ConfigError

TEXT = "lipt_0a1b2c3d_" + "5" * 64


def test_token_is_read_from_a_line_with_white_space_around_it() -> None:
    token = Token.parse(f" {TEXT}\n")
    assert token is not None
    assert (token.token_id, token.text) == ("0a1b2c3d", TEXT)
    assert token.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    assert "lipt_" not in f"{token} {token!r}"


def test_other_texts_are_no_token() -> None:
    other_ids = (TEXT.replace("0a1b2c3d", other) for other in ("", "0a 1b"))
    other_ends = ("lipt", TEXT[:-1], TEXT + "5", TEXT.replace("5", "A"), f"{TEXT}\n{TEXT}")
    for text in ("", "é" * 78, TEXT.replace("lipt", "LIPT"), *other_ids, *other_ends):
        assert Token.parse(text) is None, text


ONE, OTHER = Token.draw("one").text, Token.draw("other").text


def test_file_is_read_anew_and_wins_over_the_text(tmp_path: Path) -> None:
    text = TokenSource.from_options(None, ONE)
    assert text is not None
    assert text.read() == ONE
    assert ONE not in repr(text)
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

    with pytest.raises(ConfigError, match=r"none cannot be read: No such file.*lipt token create"):
        TokenSource.from_options(tmp_path / "none", None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="bytes cannot be read: it is not text"):
        TokenSource.from_options(tmp_path / "bytes", None)


# Publishes, says so, and waits until it is killed.
PUBLISHER = """
import sys
from lipt.common.access.tokens import published
with published(7, sys.argv[1]) as paths:
    print(len(paths), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The two folders for tokens, both of which can be made."""
    for name in ("runtime", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "runtime" / "lipt", tmp_path / "temporary" / f"lipt-{os.geteuid()}"


def test_token_is_its_user_s_alone_and_found_until_it_is_withdrawn(
    folders: tuple[Path, Path],
) -> None:
    before = os.umask(0)
    try:
        with published(7, "one") as paths:
            assert paths == tuple(folder / "7.token" for folder in folders)
            assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]
            assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
            assert find_local_token(7) == "one"
            assert find_local_token(8) is None
            with published(7, "other") as others:
                assert others == ()
                assert find_local_token(7) == "one"
            assert find_local_token(7) == "one"
    finally:
        os.umask(before)
    assert find_local_token(7) is None
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_token_of_a_killed_coordinator_is_not_found_and_gives_way_to_the_next_one_s() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, "one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"2\n"
        assert find_local_token(7) == "one"
        process.kill()
        process.wait()
    assert find_local_token(7) is None
    with published(7, "other"):
        assert find_local_token(7) == "other"


@pytest.mark.parametrize("mode", [0o701, 0o770, 0o750, 0o700])
def test_folder_that_others_may_enter_or_own_is_used_by_neither_side(
    folders: tuple[Path, Path], mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with published(7, "one"):
        for folder in folders:
            folder.chmod(mode)
        if mode == 0o700:
            # Of the same names; it is their owner that is wrong.
            monkeypatch.setattr(tokens, "_folders", lambda: iter(folders))
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert find_local_token(7) is None
        with published(8, "other") as paths:
            assert paths == ()


def test_links_in_place_of_folder_or_file_are_not_followed(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for folder in folders:
        folder.symlink_to(elsewhere)
    with published(7, "one") as paths:
        assert paths == ()
    assert list(elsewhere.iterdir()) == []
    for folder in folders:
        folder.unlink()
    with published(7, "one"):
        for folder in folders:
            (folder / "8.token").symlink_to(folder / "7.token")
        assert find_local_token(8) is None


def test_file_that_others_can_read_is_not_believed(folders: tuple[Path, Path]) -> None:
    with published(7, "one") as paths:
        for path in paths:
            path.chmod(0o644)
        assert find_local_token(7) is None
