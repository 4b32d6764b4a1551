from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lipt.coordinator.compute.cache import cached


@dataclass(frozen=True)
class Text:
    """The least that can be kept."""

    text: str

    def save(self, path: Path) -> None:
        path.write_text(self.text)

    @classmethod
    def load(cls, path: Path) -> Text:
        return cls(path.read_text())


def keep(folder: Path, name: str, made: list[str]) -> str:
    def compute() -> Text:
        made.append(name)
        return Text(f"of {name}")

    return cached(folder, name, load=Text.load, compute=compute).text


def test_value_is_computed_once(tmp_path: Path) -> None:
    made: list[str] = []
    assert [keep(tmp_path / "new", "a", made) for _ in range(3)] == ["of a"] * 3
    assert made == ["a"]


def test_only_the_four_last_used_files_stay(tmp_path: Path) -> None:
    made: list[str] = []
    for age, name in enumerate("abcd"):
        keep(tmp_path, name, made)
        os.utime(tmp_path / f"{name}.safetensors", (age, age))
    keep(tmp_path, "a", made)  # used again: b is the oldest now
    keep(tmp_path, "e", made)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d", "e"]
    assert made == list("abcde")
