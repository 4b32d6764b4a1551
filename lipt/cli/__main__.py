"""`python -m lipt.cli` is `lipt`."""

from __future__ import annotations

from lipt.cli.app import program

program()
