"""Mutants: the rows of the table, the text that each replaces, and the verdict on it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

# The group of the mutants that cosmic-ray's operators make; a table's group is its name.
DECISIONS = "decisions"


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    TIMEOUT = "timeout"  # counts as caught where the row says `hangs`
    BROKEN = "broken"  # the tests fail without the mutation
    STALE = "stale"  # the text of the row is not in the file


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    NOT_RUN = "not run"  # a wrong node id, or every test was skipped


class StaleError(Exception):
    """A row does not fit the code."""


@dataclass(frozen=True)
class Edit:
    """A text that occurs `count` times in a file, and its replacement."""

    file: str
    find: str
    replace: str
    count: int = 1


@dataclass(frozen=True)
class Mutant:
    """One row of a table, whose name is `group`.

    tests: files or node ids that have to fail. hangs: a timeout counts as caught.
    slow: run by `--slow` only.
    """

    name: str
    group: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    hangs: bool = False
    slow: bool = False


def read_mutants(folder: Path) -> list[Mutant]:
    """The rows of all tables in a folder; ValueError for a wrong one."""
    mutants: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for module in table["module"]:
            mutants += [_mutant(row, module, path.stem) for row in module["mutant"]]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two rows have the name {min(twice)!r}. Rename one.")
    return mutants


def _mutant(row: Mapping[str, Any], module: Mapping[str, Any], group: str) -> Mutant:
    given = dict(row)
    name = given.pop("name")
    edits = given.pop("edit", None) or [
        {key: given.pop(key) for key in ("find", "replace", "count") if key in given}
    ]
    tests = tuple(given.pop("tests", None) or module["tests"])
    given.setdefault("slow", module.get("slow", False))
    try:
        made = tuple(Edit(**{"file": module["file"], **edit}) for edit in edits)
        return Mutant(name, group, made, tests, **given)
    except TypeError as error:
        raise ValueError(f"row {name!r}: {error}") from error


def mutated_files(mutant: Mutant, root: Path) -> dict[str, str]:
    """The new text of each file that a mutant changes; StaleError where a row does not fit."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        path = root / edit.file
        if not path.is_file():
            raise StaleError(f"{edit.file} is missing")
        texts[edit.file] = apply_edit(texts.get(edit.file) or path.read_text("utf-8"), edit)
    return texts


def apply_edit(text: str, edit: Edit) -> str:
    found = text.count(edit.find) if edit.find else 0
    if found != edit.count:
        raise StaleError(
            f"{edit.file} has {edit.find.strip().splitlines()[:1]} {found} times, not {edit.count}"
        )
    if edit.find == edit.replace:
        raise StaleError(f"{edit.file}: the replacement is the text itself")
    return text.replace(edit.find, edit.replace)


def judge(unmutated: Outcome, mutated: Outcome, *, hangs: bool) -> Verdict:
    if unmutated is not Outcome.PASSED or mutated is Outcome.NOT_RUN:
        return Verdict.BROKEN
    if mutated is Outcome.TIMEOUT:
        return Verdict.CAUGHT if hangs else Verdict.TIMEOUT
    return Verdict.CAUGHT if mutated is Outcome.FAILED else Verdict.SURVIVED
