"""Record: the golden digests of all parts, in one file.

    {"exact":    {PART: {STAGE: DIGEST}},
     "machines": {KEY: {"machine": {...}, "digests": {PART: {STAGE: DIGEST}}}}}

The exact part is the same on every machine. All else depends on the kind of CPU and on torch's
version, and is kept for each kind of machine under its key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.golden.comparison import Stage, by_name

FILE = Path(__file__).with_name("digests.json")

Digests = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class MachineRecord:
    """The digests of one kind of machine, and a description of the machine that wrote them."""

    machine: Mapping[str, str]
    digests: Digests


@dataclass(frozen=True)
class Record:
    """All golden digests."""

    exact: Digests = field(default_factory=dict)
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)

    def expected(self, part: str, key: str) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
        """A part's exact digests, and those of a machine; None where it has no record of it."""
        machine = self.machines.get(key)
        return self.exact.get(part, {}), machine.digests.get(part) if machine else None


def update(
    record: Record,
    key: str,
    machine: Mapping[str, str],
    parts: Mapping[str, Sequence[Stage]],
) -> tuple[Record, list[str]]:
    """A record with a machine's results in it, and what has changed, line by line.

    Other machines keep their digests of a part, unless its exact digests have changed: then
    their digests are older than the code, and are removed.

    Args:
        record: as it was.
        key: of this machine.
        machine: its description.
        parts: the stages that were computed; parts that are not named stay as they are.
    """
    exact = {part: by_name(stages, exact=True) for part, stages in parts.items()}
    local = {part: by_name(stages, exact=False) for part, stages in parts.items()}
    known = record.machines.get(key, MachineRecord(machine, {}))
    notes = []
    if key not in record.machines:
        notes.append(f"added a record of this machine: {key}")
    for part in parts:
        old_exact, old_local = record.exact.get(part), known.digests.get(part)
        notes += _changes(f"{part}, exact", old_exact, exact[part])
        notes += _changes(f"{part}, this machine", old_local, local[part])
    changed = {part for part in parts if record.exact.get(part, exact[part]) != exact[part]}
    machines = {}
    for name, other in record.machines.items():
        if name == key:
            continue
        stale = sorted(changed & other.digests.keys())
        notes += [f"removed {part} of {name}: its exact part has changed" for part in stale]
        left = {part: other.digests[part] for part in other.digests if part not in changed}
        if left:
            machines[name] = replace(other, digests=left)
        else:
            notes.append(f"removed the record of {name}: nothing is left of it")
    machines[key] = MachineRecord(machine, {**known.digests, **local})
    return Record({**record.exact, **exact}, machines), notes


def _changes(label: str, old: Mapping[str, str] | None, new: Mapping[str, str]) -> list[str]:
    if old is None:
        return [f"{label}: {len(new)} digests added"] if new else []
    changed = [name for name in old if name in new and old[name] != new[name]]
    added, removed = [n for n in new if n not in old], [n for n in old if n not in new]
    lists = (("changed", changed), ("added", added), ("removed", removed))
    return [
        f"{label}: {len(names)} digests {verb}, the first is {names[0]}"
        for verb, names in lists
        if names
    ]


def load(path: Path = FILE) -> Record:
    """The record of a file; an empty one where there is no file."""
    if not path.exists():
        return Record()
    content = json.loads(path.read_text(encoding="utf-8"))
    machines = {
        key: MachineRecord(value["machine"], value["digests"])
        for key, value in content["machines"].items()
    }
    return Record(content["exact"], machines)


def save(record: Record, path: Path = FILE) -> None:
    """Write a record: sorted by part and machine, a line for each stage."""
    machines = {
        key: {"machine": dict(value.machine), "digests": _sorted(value.digests)}
        for key, value in sorted(record.machines.items())
    }
    content = {"exact": _sorted(record.exact), "machines": machines}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _sorted(digests: Digests) -> dict[str, dict[str, str]]:
    # Stages stay in the pipeline's order.
    return {part: dict(digests[part]) for part in sorted(digests)}
