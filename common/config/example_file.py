"""Example files: every setting of a command in TOML, installed with the package."""

from __future__ import annotations

from importlib.resources import files


def example_file(name: str) -> str:
    """The content of a file of deploy/, such as "run.example.toml"."""
    return files("lipt.deploy").joinpath(name).read_text(encoding="utf-8")
