from pathlib import Path

import pytest

from tests.mutations.mutants import (
    Edit,
    Mutant,
    Outcome,
    StaleError,
    Verdict,
    judge,
    mutated_files,
    read_mutants,
)

TABLE = """
[[module]]
file = "a.py"
tests = ["test_a.py"]

[[module.mutant]]
name = "one"
find = "x > 0"
replace = "x >= 0"

[[module.mutant]]
name = "two"
tests = ["test_b.py"]
hangs = true
[[module.mutant.edit]]
find = "x"
replace = "y"
count = 2
[[module.mutant.edit]]
file = "b.py"
find = "lock"
replace = ""
"""


ROWS = Path(__file__).parent / "rows"


def make_mutant(*edits: Edit) -> Mutant:
    return Mutant("m", "table", edits, ("test_a.py",))


def test_a_row_has_its_module_s_file_and_tests_unless_it_names_others(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    one, two = read_mutants(tmp_path)
    assert one == Mutant("one", "table", (Edit("a.py", "x > 0", "x >= 0"),), ("test_a.py",))
    assert two.edits == (Edit("a.py", "x", "y", count=2), Edit("b.py", "lock", ""))
    assert (two.tests, two.hangs) == (("test_b.py",), True)


@pytest.mark.parametrize(
    ("old", "new"),
    [('name = "two"', 'name = "one"'), ("hangs = true", "hang = true"), ('find = "lock"', "")],
)
def test_a_wrong_row_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace(old, new))
    with pytest.raises(ValueError, match="row"):
        read_mutants(tmp_path)


def test_edits_of_one_file_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = x")
    mutant = make_mutant(Edit("a.py", "x", "y", count=2), Edit("a.py", "y =", "z ="))
    assert mutated_files(mutant, tmp_path) == {"a.py": "z = y"}
    assert (tmp_path / "a.py").read_text() == "x = x"


@pytest.mark.parametrize(
    "edit",
    [Edit("none", "a", "x"), *(Edit("f", old, new) for old, new in ("gx", "ax", "bb", ("", "x")))],
)
def test_an_edit_that_does_not_fit_the_text_is_stale(tmp_path: Path, edit: Edit) -> None:
    (tmp_path / "f").write_text("a b a")
    with pytest.raises(StaleError):
        mutated_files(make_mutant(edit), tmp_path)


@pytest.mark.parametrize(
    ("unmutated", "mutated", "hangs", "verdict"),
    [
        (Outcome.PASSED, Outcome.FAILED, False, Verdict.CAUGHT),
        (Outcome.PASSED, Outcome.PASSED, False, Verdict.SURVIVED),
        (Outcome.PASSED, Outcome.TIMEOUT, False, Verdict.TIMEOUT),
        (Outcome.PASSED, Outcome.TIMEOUT, True, Verdict.CAUGHT),
        (Outcome.PASSED, Outcome.NOT_RUN, False, Verdict.BROKEN),
        (Outcome.FAILED, Outcome.FAILED, False, Verdict.BROKEN),
        (Outcome.NOT_RUN, Outcome.FAILED, False, Verdict.BROKEN),
    ],
)
def test_a_mutant_is_caught_if_its_tests_fail_and_pass_without_it(
    unmutated: Outcome, mutated: Outcome, hangs: bool, verdict: Verdict
) -> None:
    assert judge(unmutated, mutated, hangs=hangs) is verdict


def test_the_tests_that_rows_name_are_there() -> None:
    named = {test.partition("::")[0] for mutant in read_mutants(ROWS) for test in mutant.tests}
    assert not sorted(test for test in named if not (ROWS.parents[2] / test).exists())


@pytest.mark.lint
def test_every_row_fits_the_code_as_it_stands() -> None:
    root = Path(__file__).parents[2]
    stale = []
    for mutant in read_mutants(root / "tests/mutations/rows"):
        try:
            mutated_files(mutant, root)
        except StaleError as error:
            stale.append(f"{mutant.name}: {error}")
    assert stale == []
