"""Plain words: finds terms that the project's texts avoid, long sentences and long error messages.

`python -m docs.make.plain_words` reads the pages, and comments, docstrings and messages of the
code. plain_words.toml has the terms, the files to read and the exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_TERMS = {
    re.compile(term.replace(" ", r"\s+"), re.IGNORECASE): cure
    for term, cure in _RULES["terms"].items()
}
_MAX_WORDS = 35
# Of an error message, without its values.
_MAX_SENTENCES, _MAX_CHARACTERS = 2, 200
# Of a page: fenced code, included files, API entries, HTML and indented code.
_CODE = re.compile(
    r"^```.*?^```$|^ *(?:--8<--|:::) [^\n]*$|<[^>]*>|^(?: {4}|\t)(?![-*] )[^\n]*$",
    re.MULTILINE | re.DOTALL,
)
# A sentence ends at its mark; headings, list items, table cells and paragraphs stand alone.
_END = re.compile(r"(?<=[.!?])[*_)\"]*\s+|\n\s*(?:[-*#>|]+|\d+\.)\s|\n\s*\n|\|")


def prose(page: str) -> str:
    """The sentences of a Markdown page, on their lines, without code and addresses."""
    text = _CODE.sub(lambda found: "\n" * found[0].count("\n"), page)
    return re.sub(r"`[^`]*`", "`code`", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and messages of a Python file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        # A single word is a name.
        if isinstance(node, ast.Constant) and " " in str(node.value):
            yield node.lineno, re.sub(r"`[^`]*`", "`code`", str(node.value))


def terms(text: str, line: int = 1) -> Iterator[tuple[int, str]]:
    """Each term to avoid, with its line and the words to use instead."""
    for term, cure in _TERMS.items():
        for found in term.finditer(text):
            yield (
                line + text.count("\n", 0, found.start()),
                f"'{' '.join(found[0].split())}': write {cure}",
            )


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence above the limit, with its line and its beginning."""
    start = 0
    for end in (*(found.end() for found in _END.finditer(text)), len(text)):
        words = re.findall(r"\S*\w\S*", text[start:end])
        if len(words) > _MAX_WORDS:
            line = 1 + text.count("\n", 0, text.index(words[0], start))
            yield line, f"{len(words)} words, split it: {' '.join(words[:8])} ..."
        start = end


def _literal(message: ast.expr) -> str:
    """A message's literal text, with a 1 for each value."""
    if isinstance(message, ast.JoinedStr):
        parts = message.values
        return "".join(_literal(part) if isinstance(part, ast.Constant) else "1" for part in parts)
    return str(message.value) if isinstance(message, ast.Constant) else "1"


def long_errors(source: str) -> Iterator[tuple[int, str]]:
    """Each error message above the limits, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if re.search(r"(?:Error|BadParameter)$", ast.unparse(node.func)):
            text = _literal(node.args[0])
            sentences = re.split(r"[.?!]\s+(?=[A-Z`1])", text)
            if len(sentences) > _MAX_SENTENCES or len(text.replace("1", "")) > _MAX_CHARACTERS:
                yield node.lineno, f"error of {len(sentences)} sentences, {len(text)} characters"


def complaints(name: str, text: str) -> list[tuple[int, str]]:
    """All findings in a file, by line."""
    if name.endswith(".md"):
        return sorted([*terms(prose(text)), *long_sentences(prose(text))])
    found = [wrong for line, remark in remarks(text) for wrong in terms(remark, line)]
    return sorted([*found, *long_errors(text)])


def main(patterns: list[str]) -> int:
    """Print the findings in the files of the rules, or in those that match the patterns."""
    paths = {path for pattern in patterns or _RULES["files"] for path in _ROOT.glob(pattern)}
    paths -= {path for pattern in _RULES["except"]["files"] for path in _ROOT.glob(pattern)}
    found = [
        f"{path.relative_to(_ROOT)}:{line}: {complaint}\n"
        for path in sorted(paths)
        for line, complaint in complaints(path.name, path.read_text("utf-8"))
    ]
    found = [line for line in found if not any(known in line for known in _RULES["except"]["here"])]
    sys.stdout.writelines(found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
