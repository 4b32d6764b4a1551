"""`make bench-selection`: selection strategies against the field's libraries.

All sides get the same signals, one thread, and a process of their own per row. Compiled
loops are compiled before they are measured, theirs and ours. Memory is what a process
takes beyond its signals and libraries. What a choice is worth is computed by one function
for all. Machines are noisy: look at ratios within a run.

    python -m benchmarks.selection --sizes 5000 --deepcore PATH --cords PATH
    python -m benchmarks.selection --groups class           # one class of ImageNet, ours
    python -m benchmarks.selection --groups imagenet        # all of ImageNet, ours: long
    python -m benchmarks.selection --device cuda            # ours on a GPU
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.selection import workload
from benchmarks.selection.groups import (
    CLASS_SIDES,
    GROUPS,
    IMAGENET_SIDES,
    Group,
    random_choice,
)
from benchmarks.selection.objectives import NUM_RANDOM
from benchmarks.selection.runner import Limits, Outcome, RowSpec, measure_row, write_signals
from benchmarks.selection.side import Checkouts, Side, Task, unweighted
from benchmarks.selection.tables import Row, cost_table, group_table
from lipt.common.process.devices import versions

FRACTION = 0.1
CLASS_SHAPE = {"num_examples": 1300, "num_classes": 1000, "num_features": 2048}
IMAGENET_SHAPE = {"num_examples": 1_280_000, "num_classes": 1000, "num_features": 512}
IMAGENET_THREADS = 2
EXTRA_GROUPS = ("class", "imagenet")


@dataclass(frozen=True)
class Plan:
    """Arguments of the command line."""

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    sides: tuple[str, ...]
    device: str
    deepcore: str | None
    cords: str | None
    limits: Limits

    def wants(self, side: Side) -> bool:
        if self.device == "cuda" and not side.ours:
            return False
        return not self.sides or any(word in side.name.lower() for word in self.sides)

    def measure(self, group: str, side: Side, folder: Path, budget: int) -> Outcome:
        imagenet = group == "imagenet"
        spec = RowSpec(
            group=group,
            side=side.name,
            folder=str(folder),
            budget=budget,
            deepcore=self.deepcore,
            cords=self.cords,
            threads=IMAGENET_THREADS if imagenet else 1,
            device=self.device,
            mapped=imagenet and self.device == "cpu",
        )
        outcome = measure_row(spec, self.limits)
        told = f"{outcome.cost.wall_seconds:.2f} s" if outcome.cost else outcome.problem
        print(f"  {side.name}: {told}", file=sys.stderr, flush=True)
        return outcome


def main() -> None:
    plan, json_path = parse()
    if plan.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: this torch finds no CUDA device. Leave --device out.")
    print(machine(plan.device))
    print(f"{FRACTION:.0%} of the examples; one thread a side except where said.\n")
    results: dict[str, list[Row]] = {}
    for name in plan.groups:
        print(f"== {name}", file=sys.stderr, flush=True)
        if name in GROUPS:
            results[name] = [row for size in plan.sizes for row in compare(plan, name, size)]
            print(group_table(GROUPS[name], results[name]), end="\n\n", flush=True)
        else:
            results[name] = list(alone(plan, name))
            memory = "GPU" if plan.device == "cuda" else "RAM"
            print(f"{TITLES[name]}.\n\n{cost_table(results[name], memory)}", end="\n\n", flush=True)
    if json_path is not None:
        rows = {name: [asdict(row) for row in rows] for name, rows in results.items()}
        json_path.write_text(json.dumps({"machine": machine(plan.device), "rows": rows}, indent=1))


TITLES = {
    "class": "One class of an ImageNet-shaped set: 1,300 examples, C = 1,000, d = 2,048; ours",
    "imagenet": (
        "An ImageNet-shaped set: 1,280,000 examples, C = 1,000, d = 512, in half precision; ours, "
        f"{IMAGENET_THREADS} threads"
    ),
}


def parse() -> tuple[Plan, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selection",
        description="Selection strategies against the field's libraries.",
    )
    names = (*GROUPS, *EXTRA_GROUPS)
    parser.add_argument("--groups", nargs="+", choices=names, default=(*GROUPS, "class"))
    parser.add_argument("--imagenet", action="store_true", help="the same as --groups imagenet")
    parser.add_argument("--sizes", nargs="+", type=int, default=(5000, 20000, 50000))
    parser.add_argument(
        "--sides", nargs="+", default=(), help="only rows whose names have one of these words"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--deepcore", default=None, help="a checkout of PatrickZH/DeepCore")
    parser.add_argument("--cords", default=None, help="a checkout of decile-team/cords")
    parser.add_argument("--time-limit", type=float, default=900, help="CPU seconds a row")
    parser.add_argument(
        "--memory-limit", type=float, default=memory_gb(), help="GB a row; default: most there is"
    )
    parser.add_argument("--json", type=Path, default=None, help="a file for the figures")
    given = parser.parse_args()
    plan = Plan(
        groups=("imagenet",) if given.imagenet else tuple(given.groups),
        sizes=tuple(given.sizes),
        sides=tuple(word.lower() for word in given.sides),
        device=given.device,
        deepcore=given.deepcore or None,
        cords=given.cords or None,
        limits=Limits(given.time_limit, given.memory_limit),
    )
    return plan, given.json


def compare(plan: Plan, name: str, size: int) -> Iterator[Row]:
    """The rows of one group at one size."""
    group = GROUPS[name]
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        held = size // 10 if group.validated else 0
        write_signals([f"num_examples={size}", f"num_validation={held}"], folder)
        task = Task(workload.read(folder), round(FRACTION * size), Checkouts(None, None))
        rows = [
            _row(size, task, group, plan.measure(name, side, folder, task.budget))
            for side in group.sides
            if plan.wants(side)
        ]
        rows.append(_random_row(size, task, group))
    yield from _normalized(rows, group.exact)


def alone(plan: Plan, name: str) -> Iterator[Row]:
    """Ours, at the shape of ImageNet."""
    shape, sides = (
        (CLASS_SHAPE, CLASS_SIDES) if name == "class" else (IMAGENET_SHAPE, IMAGENET_SIDES)
    )
    held = 50 if name == "class" else 50 * shape["num_classes"]
    more = ["only_class=0"] if name == "class" else ["dtype=float16"]
    size = shape["num_examples"]
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        arguments = [f"{key}={value}" for key, value in shape.items()]
        write_signals([*arguments, f"num_validation={held}", *more], folder)
        for side in sides:
            if plan.wants(side):
                outcome = plan.measure(name, side, folder, round(FRACTION * size))
                yield _cost_row(size, outcome)


def _cost_row(size: int, outcome: Outcome) -> Row:
    count = 0 if outcome.chosen is None else len(outcome.chosen.indices_K.unique())
    return Row(size, outcome.spec.side, outcome.cost, count, problem=outcome.problem)


def _row(size: int, task: Task, group: Group, outcome: Outcome) -> Row:
    if outcome.chosen is None:
        return Row(size, outcome.spec.side, problem=outcome.problem)
    value = group.score(task, outcome.chosen)
    count = len(outcome.chosen.indices_K.unique())
    return Row(size, outcome.spec.side, outcome.cost, count, objective=value)


def _random_row(size: int, task: Task, group: Group) -> Row:
    values = [
        group.score(task, unweighted(random_choice(task, seed, balanced=group.balanced)))
        for seed in range(NUM_RANDOM)
    ]
    return Row(size, f"random, mean of {NUM_RANDOM}", None, task.budget, sum(values) / len(values))


def _normalized(rows: list[Row], exact: tuple[str, ...]) -> list[Row]:
    """Q in the place of F; the last row is the random one."""
    known = {row.side: row.objective for row in rows if row.objective is not None}
    reference = next((known[side] for side in exact if side in known), None)
    random = rows[-1].objective
    if reference is None or random is None or reference == random:
        return rows
    return [
        row
        if row.objective is None
        else replace(row, objective=(row.objective - random) / (reference - random))
        for row in rows
    ]


def machine(device: str) -> str:
    names = ", ".join(f"{name} {version}" for name, version in versions().items())
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, {names}"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} cores of {models[0] if models else platform.processor()}, {names}"


def memory_gb() -> float:
    """Nine tenths of what is available now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 * 0.9 / 1e9
    return 8.0


if __name__ == "__main__":
    main()
