"""Checks of output paths: what could not be written in the end is refused at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import typer


def require_place(path: Path) -> None:
    """Check that there can be a file of this name.

    Raises:
        typer.BadParameter: it is a directory, or its directory is missing or read-only.
    """
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is not a directory. Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} cannot be written to. Name another place.")


def require_replaceable(*paths: Path | None) -> None:
    """Check that files can be written, each in place of the one of its name.

    Raises:
        typer.BadParameter: as `require_place`, or what is there is a device or a pipe.
    """
    for path in paths:
        if path is None:
            continue
        require_place(path)
        if path.exists() and not path.is_file():
            raise typer.BadParameter(f"{path} is not a regular file. Name another.")


def require_apart(paths: Mapping[str, Path | None]) -> None:
    """Check that no file is named twice, where one would overwrite the other.

    Args:
        paths: by their flags.

    Raises:
        typer.BadParameter: two of them are the same file.
    """
    taken: dict[Path, str] = {}
    for flag, path in paths.items():
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), flag)
        if other != flag:
            raise typer.BadParameter(
                f"{other} and {flag} are both {path}. Give each a file of its own."
            )
