"""Text for people, printable even if a peer wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence


def listed(items: Collection[object], most: int, *, separator: str = ", ") -> str:
    shown, more = separator.join(map(str, list(items)[:most])), len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown


def did_you_mean(name: str, known: Collection[str], *, most: int = 3) -> str:
    """A sentence with the closest names, after a space, or ""."""
    close = difflib.get_close_matches(name.lower(), [other.lower() for other in known], n=most)
    meant = [other for other in known if other.lower() in close]
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def empty_classes(class_names: Sequence[str], class_counts: Sequence[int]) -> str:
    """A clause about classes without examples; empty if there are none."""
    if len(class_counts) != len(class_names):
        return ""
    empty = [name for name, count in zip(class_names, class_counts, strict=True) if not count]
    if not empty:
        return ""
    clause = f"{len(empty)} of its {len(class_names)} classes have no example: {listed(empty, 5)}"
    if class_names[0] == "0" == empty[0]:
        first = next((index for index, count in enumerate(class_counts) if count), "none")
        clause += f"; its labels begin at {first}, and classes are counted from 0"
    return clause


# A peer's text may contain line ends, terminal escapes, direction marks or millions of characters.

# Longer than any message of this package.
MAX_CHARACTERS = 4000
INDENT = "    "


def printable(text: str) -> str:
    """`text` on one line; drops the middle of more than `MAX_CHARACTERS`."""
    return _without_middle(escaped(_without_middle(text)))


def printable_lines(text: str) -> str:
    """`text` line by line, each as `printable`; all but the first are indented."""
    return f"\n{INDENT}".join(map(printable, text.split("\n")))


def escaped(text: str, *, keep: str = "") -> str:
    """`text` with Python's escapes for unprintable characters, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode()
        for mark in text
    )


def encodable(text: str) -> str:
    """`text` with escapes for what is not UTF-8, such as bytes of a file's name."""
    return text.encode(errors="backslashreplace").decode()


def _without_middle(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    gap = f" ...({len(text)} characters)... "
    half = (MAX_CHARACTERS - len(gap)) // 2
    return text[:half] + gap + text[-half:]


def format_bytes(count: int) -> str:
    """A size with its decimal unit: 1234567 is "1.2 MB"."""
    if count < 1000:
        return f"{count} B"
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"
