import errno
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lipt.common.blobs.files import cache_file, cached_files, find_cached, remove_oldest


class Texts:
    """Texts that are made once and kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[str] = []

    def text(self, name: str, *, kind: str = "kind") -> str:
        path = find_cached(self.folder, kind, (name,))
        if path is None:
            self.made.append(name)
            path = cache_file(self.folder, kind, (name,), partial(self.write, f"of {name}"))
            remove_oldest(cached_files(self.folder, kind), 4)
        return f"of {name}" if path is None else path.read_text()

    def write(self, text: str, path: Path) -> None:
        path.write_text(text)


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    return Texts(tmp_path / "kept")


@pytest.mark.parametrize("damage", [b"", b"of", b"0f a", b"of a and more"])
def test_a_damaged_cache_file_is_computed_again(
    texts: Texts, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    texts.text("a")
    (path,) = texts.folder.iterdir()
    path.write_bytes(damage)
    assert [texts.text("a") for _ in range(2)] == ["of a"] * 2
    assert texts.made == ["a", "a"]
    assert list(texts.folder.iterdir()) == [path]
    assert f"{path} is damaged" in caplog.text


def test_the_cache_keeps_the_last_used_files_of_a_kind(texts: Texts) -> None:
    files: dict[str, Path] = {}
    # A kind whose name begins with another's is a kind of its own.
    texts.text("first", kind="kind-of-all")
    (other,) = texts.folder.iterdir()
    for age, name in enumerate("abcd"):
        texts.text(name)
        (files[name],) = set(texts.folder.iterdir()) - set(files.values()) - {other}
        os.utime(files[name], (age, age))
    texts.text("a")  # used again: b is the oldest now
    texts.text("e")
    assert {name for name, path in files.items() if path.exists()} == {"a", "c", "d"}
    texts.text("first", kind="kind-of-all")
    assert texts.made == ["first", *"abcde"]
    # The newest stays, whatever its size.
    remove_oldest(texts.folder.iterdir(), 9, most_bytes=1)
    assert len(list(texts.folder.iterdir())) == 1


def test_write_errors_are_logged_and_leave_no_file(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(text: str, path: Path) -> None:
        path.with_name(f"{path.name}.part").write_text(text[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(texts, "write", full)
        assert texts.text("a") == "of a"
    assert "No space left on device. Free space, or set XDG_CACHE_HOME" in caplog.text
    assert list(texts.folder.iterdir()) == []
    assert texts.text("a") == "of a"
    assert texts.made == ["a", "a"]


def test_concurrent_writers_leave_one_complete_file(texts: Texts) -> None:
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda _: texts.text("a"), range(32)))
    assert found == ["of a"] * 32
    assert len(list(texts.folder.iterdir())) == 1


def test_files_above_the_size_limit_are_not_cached(texts: Texts) -> None:
    texts.text("a")
    assert find_cached(texts.folder, "kind", ("a",), max_bytes=3) is None
    assert find_cached(texts.folder, "kind", ("a",), max_bytes=4) is not None
