"""Contracts between the packages that neither a type checker nor import-linter can express."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parent.parent
# Texts made for people. Code decides on the values that they are rendered from.
_FOR_PEOPLE = re.compile(
    r"(^|_)(message|account|cost|finding|reason|word|sentence|detail|formula)s?$"
)
# Names of locals that say nothing of their value.
_SAYS_NOTHING = {"found", "it", "one", "others", "told", "wanted"}
_PACKAGES = ("common", "data", "models", "core", "coordinator", "worker", "trainer", "lipt")
_READING = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "find"}


def _name_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _name_of(inner)
    return ""


def _texts_read(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions that look for something in a text made for people."""
    for node in ast.walk(tree):
        read: list[ast.expr] = []
        match node:
            case ast.Compare(left=left, ops=operators, comparators=others):
                if any(isinstance(operator, ast.In | ast.NotIn) for operator in operators):
                    read = [left, *others]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=arguments):
                read = arguments
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _READING:
                read = [value]
        if any(_FOR_PEOPLE.search(_name_of(each)) for each in read):
            assert isinstance(node, ast.expr)
            yield node


def _modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    # The links in lipt/ are not followed.
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("code", "is_read"),
    [
        ('"diverged" in learner.account', True),
        ('run.message not in {"", run.state}', True),
        ('str(reason).partition(". ")', True),
        ('re.findall("[a-z]+", strategy.cost)', True),
        ('"method" in findings', True),
        ("name in known", False),
        ("f'{reason}'.strip()", False),
        ("re.compile(pattern)", False),
    ],
)
def test_reading_of_a_text_is_found(code: str, is_read: bool) -> None:
    assert bool(list(_texts_read(ast.parse(code)))) is is_read


def test_no_decision_reads_a_text_made_for_people() -> None:
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, tree in _modules("core", "coordinator", "lipt")
        for node in _texts_read(tree)
    ]
    assert found == []


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for name, tree in _modules(*_PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def _names_bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that arguments, assignments, patterns and handlers bind, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield name, line
            case ast.arg(arg=name, lineno=line):
                yield name, line
            case ast.MatchAs(name=str(name), lineno=line):
                yield name, line
            case ast.ExceptHandler(name=str(name), lineno=line):
                yield name, line


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "def f(found): pass",
        "[found for found in ()]",
        "match x:\n    case A(b=found): pass",
        "try: pass\nexcept A as found: pass",
    ],
)
def test_each_way_to_bind_a_name_is_seen(code: str) -> None:
    assert "found" in dict(_names_bound(ast.parse(code)))


def test_a_local_is_named_for_its_value() -> None:
    unnamed = [
        f"{path}:{line}: {name}"
        for path, tree in _modules(*_PACKAGES)
        for name, line in _names_bound(tree)
        if name in _SAYS_NOTHING
    ]
    assert unnamed == []
