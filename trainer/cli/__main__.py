"""`python -m lipt.trainer.cli` is `lipt`."""

from __future__ import annotations

from lipt.trainer.cli.app import program

program()
