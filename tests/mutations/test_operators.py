from pathlib import Path

import pytest

from tests.mutations.mutants import mutated_files

pytest.importorskip("cosmic_ray", reason="make env installs cosmic-ray")

CODE = "def is_free(now, until):\n    return now >= until and now > 0\n"
TABLE = '[modules]\n"a.py" = ["test_a.py"]\n'


def test_each_operator_changes_one_place_of_a_module_and_is_named_by_its_line(
    tmp_path: Path,
) -> None:
    from tests.mutations.operators import decision_mutants

    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "table.toml").write_text(TABLE)
    mutants = decision_mutants(tmp_path / "table.toml", tmp_path, sample=100)
    changed = {mutated_files(mutant, tmp_path)["a.py"] for mutant in mutants}
    second = CODE.splitlines()[0] + "\n    return {}\n"
    expected = ["now > until and now > 0", "now >= until and now >= 0", "now >= until or now > 0"]
    assert {second.format(line) for line in expected} <= changed
    assert all(mutant.name.startswith("a.py: ") and "line 2: " in mutant.name for mutant in mutants)
    few = decision_mutants(tmp_path / "table.toml", tmp_path, sample=2)
    assert few == decision_mutants(tmp_path / "table.toml", tmp_path, sample=2)
    assert len(few) == 2


@pytest.mark.slow
def test_the_modules_and_tests_of_the_table_are_there() -> None:
    from tests.mutations.__main__ import _DECIDING
    from tests.mutations.operators import decision_mutants

    root = Path(__file__).parents[2]
    mutants = decision_mutants(_DECIDING, root, sample=1)
    assert len(mutants) > 20
    assert not [test for mutant in mutants for test in mutant.tests if not (root / test).exists()]
