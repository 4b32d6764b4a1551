"""Record: the golden digests of all parts, in one file, and what differs from them.

    {"exact":    {PART: {STAGE: DIGEST}},
     "machines": {KEY: {"machine": {...}, "digests": {PART: {STAGE: DIGEST}}}}}

The exact part is the same on every machine. All else depends on the kind of CPU and on torch's
version, and is kept for each kind of machine under its key.

A digest is one short text for a numeric result, which any changed bit changes: the first 16
hexadecimal digits of the SHA-256 of its canonical bytes. These are, each after its kind:

    tensor, array    dtype, shape, values as little-endian, row-major bytes
    mapping          the entries by ascending name
    sequence         the length, the items in order
    float            8 bytes, little-endian IEEE 754
    int, bool, text, bytes, None
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).with_name("digests.json")
HINT = (
    "Record a deliberate change with `make golden`, and explain it in the commit message.\n"
    "An unexpected one is a defect."
)
_MOST_NAMED, _DIGITS = 3, 16


@dataclass(frozen=True)
class Stage:
    """A result of one step of the pipeline.

    digest: of the result; where the product refuses the request, the refusal's class.
    exact: whether every machine computes the same bits.
    """

    kind: str
    digest: str
    item: str = ""
    exact: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.item}".rstrip()


def by_name(stages: Sequence[Stage], *, exact: bool) -> dict[str, str]:
    """The digests of the exact stages, or of all others; their names have to differ."""
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two stages are called {twice!r}")
    return {stage.name: stage.digest for stage in stages if stage.exact is exact}


def describe_difference(
    part: str, stages: Sequence[Stage], recorded: Mapping[str, str]
) -> str | None:
    """What a part's stages, in the pipeline's order, differ in from the recorded ones."""
    different = [stage for stage in stages if recorded.get(stage.name) != stage.digest]
    missing = recorded.keys() - {stage.name for stage in stages}
    lines = []
    if different:
        first, *others = different
        old, place = recorded.get(first.name, "nothing"), list(stages).index(first)
        was = f"{old} was recorded, {first.digest} is computed"
        lines = [
            f"{part}: first difference at {first.name}: {was}. The {place} before it are equal.",
            f"  also different: {_some([stage.name for stage in others])}",
        ]
    if missing:
        lines.append(f"{part}: recorded, but not computed any more: {_some(sorted(missing))}")
    return "\n".join([*lines, HINT]) if lines else None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED]) or 'nothing'}{more}"


def expected(
    record: Mapping[str, Any], part: str, key: str
) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
    machine = record["machines"].get(key, {"digests": {}})
    return record["exact"].get(part, {}), machine["digests"].get(part)


def update(
    record: Mapping[str, Any],
    key: str,
    machine: Mapping[str, str],
    parts: Mapping[str, Sequence[Stage]],
) -> dict[str, Any]:
    """A record with the results of this machine, of this key, in it.

    Other machines lose a part whose exact digests have changed: theirs are older than the code.
    """
    exact = {part: by_name(stages, exact=True) for part, stages in parts.items()}
    local = {part: by_name(stages, exact=False) for part, stages in parts.items()}
    changed = {part for part in parts if record["exact"].get(part, exact[part]) != exact[part]}
    machines: dict[str, Any] = {}
    for name, known in record["machines"].items():
        left = {part: known["digests"][part] for part in known["digests"] if part not in changed}
        if left:
            machines[name] = {**known, "digests": left}
    own = machines.get(key, {"digests": {}})["digests"]
    machines[key] = {"machine": machine, "digests": {**own, **local}}
    return {"exact": {**record["exact"], **exact}, "machines": machines}


def load(path: Path = FILE) -> dict[str, Any]:
    if not path.exists():
        return {"exact": {}, "machines": {}}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def save(record: Mapping[str, Any], path: Path = FILE) -> None:
    """Write a record: sorted by machine and part, a line for each stage in the pipeline's order."""
    machines = {
        key: {"machine": value["machine"], "digests": dict(sorted(value["digests"].items()))}
        for key, value in sorted(record["machines"].items())
    }
    content = {"exact": dict(sorted(record["exact"].items())), "machines": machines}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def digest(value: Any) -> str:
    sha256 = hashlib.sha256()
    for part in _parts(value):
        # The length keeps neighbouring parts apart.
        sha256.update(struct.pack("<q", len(part)))
        sha256.update(part)
    return sha256.hexdigest()[:_DIGITS]


def _parts(value: Any) -> Iterator[bytes]:
    match value:
        case torch.Tensor():
            yield from _array(_bits(value), str(value.dtype).removeprefix("torch."))
        case np.ndarray() | np.generic():
            array: np.ndarray = np.asarray(value)
            yield from _array(array, array.dtype.name)
        case Mapping():
            yield b"mapping"
            for name, item in sorted(value.items()):
                yield from _parts(name)
                yield from _parts(item)
            yield b"end"
        case str() | bytes() | bool() | int() | float() | None:
            yield type(value).__name__.encode()
            yield _scalar(value)
        case Sequence():
            yield f"sequence {len(value)}".encode()
            for item in value:
                yield from _parts(item)
        case _:
            raise TypeError(f"a {type(value).__name__} has no canonical bytes")


def _scalar(value: str | bytes | float | None) -> bytes:
    match value:
        case bytes():
            return value
        case float():
            return struct.pack("<d", value)
        case _:
            return str(value).encode()


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The values as an array; numpy has no bfloat16, so that its bits stand for it."""
    values = tensor.detach().cpu().contiguous()
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _array(array: np.ndarray, dtype: str) -> Iterator[bytes]:
    yield f"array {dtype} {list(array.shape)}".encode()
    yield np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
