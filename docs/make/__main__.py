"""Write the generated parts, build the site, and look for what strict mode lets through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docs.make.check import complaints, loads_from_elsewhere
from docs.make.configuration import configuration
from docs.make.errors import errors
from docs.make.metrics import metrics
from docs.make.strategies import strategies

_ROOT = Path(__file__).parents[2]
_GENERATED = _ROOT / "docs" / "generated"


def main() -> int:
    """Build the site; the status is 0 where nothing is wrong with it."""
    _GENERATED.mkdir(exist_ok=True)
    for part in (configuration, errors, metrics, strategies):
        (_GENERATED / f"{part.__name__}.md").write_text(part(), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(  # noqa: S603 - our own command
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    sys.stdout.write(built.stdout)
    if built.returncode:
        return built.returncode
    wrong = [*complaints(built.stdout), *loads_from_elsewhere(_ROOT / "site")]
    sys.stdout.writelines(f"wrong: {line}\n" for line in wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
