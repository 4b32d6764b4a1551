"""What `lipt` offers by name, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import lipt
import lipt.trainer


def test_every_name_that_is_offered_is_there() -> None:
    assert [name for name in lipt.__all__ if not hasattr(lipt, name)] == []
    assert set(lipt.__all__) <= set(dir(lipt))
    assert lipt.__version__ == metadata.version("lipt")


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import lipt", {"torch", "grpc", "numpy", "pydantic", "importlib.metadata"}),
        ("from lipt import Client, Subset", {"torch", "typer"}),
        ("from lipt.trainer import RunView", {"torch", "grpc", "numpy", "pydantic"}),
    ],
)
def test_importing_it_is_cheap(statement: str, unwanted: set[str]) -> None:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not unwanted & set(done.stdout.split())


@pytest.mark.parametrize("module", ["lipt.trainer.cli", "lipt.coordinator", "lipt.worker"])
def test_every_program_says_its_version_at_once(module: str) -> None:
    code = f"import runpy, sys; sys.argv = ['it', '--version']; runpy.run_module({module!r})"
    tell = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    done = subprocess.run(
        [sys.executable, "-c", tell + code.replace(")", ", run_name='__main__')")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [f"lipt {lipt.__version__}", "False"]


@pytest.mark.parametrize("module", ["lipt.trainer.cli", "lipt.coordinator", "lipt.worker"])
def test_h_is_help(module: str) -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-m", module, flag],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for flag in ("-h", "--help")
    ]
    assert texts[0] == texts[1]
    assert "--version" in texts[0]


def test_the_trainer_offers_its_names_too() -> None:
    assert [name for name in lipt.trainer.__all__ if not hasattr(lipt.trainer, name)] == []
    with pytest.raises(AttributeError, match=r"module 'lipt\.trainer' has no attribute 'Trainer'"):
        lipt.trainer.Trainer  # noqa: B018
