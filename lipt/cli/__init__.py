"""The `lipt` command line: `main` has its commands, `program` is the entry point of a process."""

from __future__ import annotations

from lipt.cli.app import main, program

__all__ = ["main", "program"]
