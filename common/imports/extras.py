"""Extras: optional packages, imported when first needed, and named when they are missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from lipt.common.errors import MissingExtraError


def require_extra(module: str, *, package: str, extra: str, needed_for: str) -> None:
    """Look for an optional package without importing it, which may take seconds.

    Args:
        module: top-level name, for example `pyarrow`.
        package: as of `import_extra`, like the others.
        extra: see there.
        needed_for: see there.

    Raises:
        MissingExtraError: the package is not installed.
    """
    # What is imported already need not have come from a file.
    if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
        raise MissingExtraError(package, extra=extra, needed_for=needed_for)


def import_extra(module: str, *, package: str, extra: str, needed_for: str) -> ModuleType:
    """Import `module` of an optional package.

    Args:
        module: dotted name, for example `pyarrow.parquet`.
        package: what the package registry calls it, for example `pyarrow`.
        extra: the extra of this distribution that installs it.
        needed_for: what the user wanted, as the message's first words.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A dependency that the package itself lacks is another fault than its absence.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(package, extra=extra, needed_for=needed_for) from None
