from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import (
    FILE,
    HINT,
    Stage,
    by_name,
    describe_difference,
    expected,
    load,
    save,
    update,
)

MACHINE = {"cpu": "a"}


def stages(**changed: str) -> list[Stage]:
    """A pipeline of two learners and two subsets; some digests are given."""
    made = [
        Stage("shards", "0", exact=True),
        *(Stage("learner", "2", str(number)) for number in range(2)),
        *(Stage("subset", "5", name) for name in ("auto", "el2n")),
    ]
    return [Stage(one.kind, changed.get(one.name, one.digest), one.item, one.exact) for one in made]


RECORDED = {stage.name: stage.digest for stage in stages()}


def test_the_first_difference_is_named_with_what_comes_after_it() -> None:
    assert describe_difference("digits", stages(), RECORDED) is None
    changed = {"learner 1": "x", "subset el2n": "SignalsError"}
    assert describe_difference("digits", stages(**changed), RECORDED) == (
        "digits: first difference at learner 1: 2 was recorded, x is computed. The 2 before it "
        f"are equal.\n  also different: subset el2n\n{HINT}"
    )


def test_stages_that_vanish_or_appear_are_differences() -> None:
    gone = describe_difference("digits", stages()[:-1], RECORDED)
    assert gone is not None
    assert "recorded, but not computed any more: subset el2n" in gone
    added = describe_difference("digits", [*stages(), Stage("subset", "7", "new")], RECORDED)
    assert added is not None
    assert "first difference at subset new: nothing was recorded, 7 is computed" in added
    with pytest.raises(ValueError, match="two stages are called 'learner 1'"):
        by_name([Stage("learner", "a", "1"), Stage("learner", "b", "1")], exact=False)


def recorded() -> dict[str, Any]:
    """Two machines with two parts each."""
    record = load(Path("/nowhere"))
    for key in ("one", "two"):
        record = update(record, key, MACHINE, {"digits": stages(), "demo": stages()})
    return record


def test_other_machines_keep_a_part_as_long_as_its_exact_digests_stay() -> None:
    changed = update(recorded(), "one", MACHINE, {"digits": stages(**{"learner 0": "m"})})
    assert changed["machines"]["two"] == recorded()["machines"]["two"]
    exact, local = expected(changed, "digits", "one")
    assert exact == {"shards": "0"}
    assert local is not None
    assert local["learner 0"] == "m"
    assert expected(changed, "demo", "three") == ({"shards": "0"}, None)
    changed = update(recorded(), "one", MACHINE, {"digits": stages(shards="f")})
    assert changed["machines"]["one"]["digests"].keys() == {"digits", "demo"}
    assert changed["machines"]["two"]["digests"].keys() == {"demo"}
    both = {"digits": stages(shards="f"), "demo": stages(shards="f")}
    assert list(update(recorded(), "one", MACHINE, both)["machines"]) == ["one"]


def test_the_committed_file_is_in_the_form_that_is_saved(tmp_path: Path) -> None:
    save(load(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == FILE.read_bytes()
