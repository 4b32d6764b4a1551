"""Mutants of the modules that choose, compute or grant, by the operators of cosmic-ray.

Of operators that replace one binary or comparison operator by any other, one replacement is taken:
its opposite, or its neighbour at the boundary.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray import mutating, plugins
from cosmic_ray.ast import ast_nodes, get_ast

from tests.mutations.mutants import DECISIONS, Edit, Mutant

_OPPOSITES = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_Mul Pow_Mul"
_BOUNDARIES = "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
_OPERATORS = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in _OPPOSITES.split()),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _BOUNDARIES.split()),
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not"),
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceContinueWithBreak", "ReplaceBreakWithContinue"),
    "ZeroIterationForLoop",
)


def decision_mutants(table: Path, root: Path, *, sample: int, only: str = "") -> list[Mutant]:
    """At most `sample` mutants of each module of the table, the same ones every time.

    only: a pattern of the modules' names.
    """
    mutants: list[Mutant] = []
    for file, tests in tomllib.loads(table.read_text("utf-8"))["modules"].items():
        if not re.search(only, file):
            continue
        code = (root / file).read_text("utf-8")
        places = list(_places(code))
        drawn = random.Random(file).sample(range(len(places)), min(sample, len(places)))
        mutants += [_mutant(file, code, tuple(tests), *places[number]) for number in sorted(drawn)]
    return mutants


def _places(code: str) -> Iterator[tuple[str, int]]:
    """Each operator, with the number of each place of the code that it can change."""
    nodes = list(ast_nodes(get_ast(code)))
    for operator in _OPERATORS:
        change = plugins.get_operator(f"core/{operator}")()
        count = sum(len(list(change.mutation_positions(node))) for node in nodes)
        yield from ((operator, number) for number in range(count))


def _mutant(file: str, code: str, tests: tuple[str, ...], operator: str, number: int) -> Mutant:
    change = plugins.get_operator(f"core/{operator}")()
    mutated = str(mutating.mutate_code(code, change, number))
    name = f"{file}: {operator} {number}: {_difference(code, mutated)}"
    return Mutant(name, DECISIONS, (Edit(file, code, mutated),), tests, hangs=True)


def _difference(code: str, mutated: str) -> str:
    pairs = zip(code.splitlines(), mutated.splitlines(), strict=False)
    line, changed = next((number, new) for number, (old, new) in enumerate(pairs, 1) if old != new)
    return f"line {line}: {changed.strip()}"
