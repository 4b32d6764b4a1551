from __future__ import annotations

from pathlib import Path

from tests.golden.comparison import Stage
from tests.golden.record import FILE, MachineRecord, Record, load, save, update

MACHINE = {"cpu": "a"}


def part(exact: str = "e", local: str = "l") -> list[Stage]:
    return [Stage("shards", exact, exact=True), Stage("theta*", local)]


def recorded() -> Record:
    """Two machines with two parts each."""
    record = Record()
    for key in ("one", "two"):
        record, _ = update(record, key, MACHINE, {"digits": part(), "demo": part()})
    return record


def test_a_machine_is_added_beside_the_others() -> None:
    record, notes = update(recorded(), "three", {"cpu": "b"}, {"digits": part(local="m")})
    assert list(record.machines) == ["one", "two", "three"]
    assert record.machines["three"] == MachineRecord({"cpu": "b"}, {"digits": {"theta*": "m"}})
    assert record.expected("digits", "three") == ({"shards": "e"}, {"theta*": "m"})
    assert record.expected("demo", "three") == ({"shards": "e"}, None)
    assert record.expected("demo", "four") == ({"shards": "e"}, None)
    assert notes == [
        "added a record of this machine: three",
        "digits, this machine: 1 digests added",
    ]


def test_nothing_changes_where_nothing_has() -> None:
    record, notes = update(recorded(), "one", MACHINE, {"digits": part(), "demo": part()})
    assert (record, notes) == (recorded(), [])


def test_other_machines_stay_as_long_as_the_exact_part_does() -> None:
    record, notes = update(recorded(), "one", MACHINE, {"digits": part(local="m")})
    assert record.machines["two"] == recorded().machines["two"]
    assert record.expected("digits", "one") == ({"shards": "e"}, {"theta*": "m"})
    assert notes == ["digits, this machine: 1 digests changed, the first is theta*"]


def test_a_part_whose_exact_digests_change_is_removed_elsewhere_and_that_is_told() -> None:
    record, notes = update(recorded(), "one", MACHINE, {"digits": part(exact="f")})
    assert record.machines["one"].digests.keys() == {"digits", "demo"}
    assert record.machines["two"].digests.keys() == {"demo"}
    assert notes == [
        "digits, exact: 1 digests changed, the first is shards",
        "removed digits of two: its exact part has changed",
    ]
    both = {"digits": part(exact="f"), "demo": part(exact="f")}
    record, notes = update(recorded(), "one", MACHINE, both)
    assert list(record.machines) == ["one"]
    assert notes[-1] == "removed the record of two: nothing is left of it"


def test_a_file_gives_back_what_was_saved_in_one_form(tmp_path: Path) -> None:
    path = tmp_path / "digests.json"
    assert load(path) == Record()
    save(recorded(), path)
    content = path.read_bytes()
    assert load(path) == recorded()
    save(load(path), path)
    assert path.read_bytes() == content


def test_the_committed_file_is_in_that_form(tmp_path: Path) -> None:
    save(load(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == FILE.read_bytes()
