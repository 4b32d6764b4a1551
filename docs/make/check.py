"""Check of the built site: no complaint of its tools, and nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# Zensical's strict mode counts its own warnings, and not those of the tools that it calls.
_COMPLAINT = re.compile(r"^(griffe|mkdocstrings)\b.*$", re.MULTILINE)
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href|srcset)=[\"']?(?:https?:)?//[^\s>]*"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^\s)]*"
)


def complaints(output: str) -> list[str]:
    """Warnings of the tools that read the sources."""
    return [match[0] for match in _COMPLAINT.finditer(output)]


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    """Every script, style, font or picture that a browser would fetch from another place."""
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        for match in _LOADED.finditer(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {match[0]}"
