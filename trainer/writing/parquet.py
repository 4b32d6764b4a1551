"""Parquet: what writes and reads it, an extra."""

from __future__ import annotations

from typing import Any

from lipt.common.imports import import_extra


def import_pyarrow(needed_for: str) -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Args:
        needed_for: what is to be written or read, for the message.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    arrow, parquet = (
        import_extra(module, package="pyarrow", extra="parquet", needed_for=needed_for)
        for module in ("pyarrow", "pyarrow.parquet")
    )
    return arrow, parquet
