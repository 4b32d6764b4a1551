"""Write every generated part; `make docs` does so before it builds the site."""

from __future__ import annotations

from pathlib import Path

from docs.generate.configuration import configuration
from docs.generate.strategies import strategies

_FOLDER = Path(__file__).parents[1] / "generated"


def main() -> None:
    """Write docs/generated/NAME.md for every part."""
    _FOLDER.mkdir(exist_ok=True)
    for name, text in (("configuration", configuration()), ("strategies", strategies())):
        (_FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
