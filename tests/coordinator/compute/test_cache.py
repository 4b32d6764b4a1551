from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipt.coordinator.compute import cache
from lipt.coordinator.compute.cache import find_cached


@dataclass(frozen=True)
class Text:
    """The least that can be kept."""

    text: str

    def save(self, path: Path) -> None:
        path.write_text(self.text)

    @classmethod
    def load(cls, path: Path) -> Text:
        return cls(path.read_text())


def keep(folder: Path, name: str, made: list[str], *, kind: str = "kind") -> str:
    found = find_cached(folder, kind, (name,))
    if found is not None:
        return Text.load(found).text
    made.append(name)
    value = Text(f"of {name}")
    path = cache.keep(folder, kind, (name,), value)
    return (value if path is None else Text.load(path)).text


def test_value_is_computed_once(tmp_path: Path) -> None:
    made: list[str] = []
    assert [keep(tmp_path / "new", "a", made) for _ in range(3)] == ["of a"] * 3
    assert made == ["a"]


@pytest.mark.parametrize("damage", [b"", b"of", b"0f a", b"of a and more"])
def test_a_file_that_was_damaged_is_computed_again(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    keep(tmp_path, "a", made)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert [keep(tmp_path, "a", made) for _ in range(2)] == ["of a"] * 2
    assert made == ["a", "a"]
    assert list(tmp_path.iterdir()) == [path]
    assert f"{path} is damaged" in caplog.text


def test_only_the_four_last_used_files_of_a_kind_stay(tmp_path: Path) -> None:
    made: list[str] = []
    files: dict[str, Path] = {}
    for age, name in enumerate("abcd"):
        keep(tmp_path, name, made)
        (files[name],) = set(tmp_path.iterdir()) - set(files.values())
        os.utime(files[name], (age, age))
    keep(tmp_path, "a", made)  # used again: b is the oldest now
    keep(tmp_path, "e", made)
    assert {name for name, path in files.items() if path.exists()} == {"a", "c", "d"}
    assert len(list(tmp_path.iterdir())) == 4
    assert made == list("abcde")


def test_a_kind_whose_name_begins_with_another_s_is_a_kind_of_its_own(tmp_path: Path) -> None:
    made: list[str] = []
    keep(tmp_path, "first", made, kind="signals-of-all")
    for name in "abcde":
        keep(tmp_path, name, made, kind="signals")
    keep(tmp_path, "first", made, kind="signals-of-all")
    assert made == ["first", *"abcde"]


def test_value_that_cannot_be_kept_is_given_all_the_same_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(text: Text, path: Path) -> None:
        path.with_name(f"{path.name}.part").write_text(text.text[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    made: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Text, "save", full)
        assert keep(tmp_path, "a", made) == "of a"
    assert "No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert keep(tmp_path, "a", made) == "of a"
    assert made == ["a", "a"]
