"""The `lipt` command line; `main` is its entry point."""

from __future__ import annotations

from lipt.trainer.cli.app import main

__all__ = ["main"]
