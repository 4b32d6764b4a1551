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


def printed(*arguments: str) -> str:
    return subprocess.check_output([sys.executable, *arguments], text=True, timeout=60)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import lipt", {"torch", "grpc", "numpy", "pydantic", "importlib.metadata"}),
        ("from lipt import Client, Subset", {"torch", "typer"}),
        ("from lipt.trainer import RunView", {"torch", "grpc", "numpy", "pydantic"}),
    ],
)
def test_importing_it_is_cheap(statement: str, unwanted: set[str]) -> None:
    assert not unwanted & set(
        printed("-c", f"import sys; {statement}; print(*sys.modules)").split()
    )


@pytest.mark.parametrize("module", ["lipt.trainer.cli", "lipt.coordinator", "lipt.worker"])
def test_every_program_says_its_version_at_once_and_h_is_help(module: str) -> None:
    tell = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    run = f"runpy.run_module({module!r}, run_name='__main__')"
    code = f"{tell}import runpy; sys.argv = ['it', '--version']; {run}"
    assert printed("-c", code).splitlines() == [f"lipt {lipt.__version__}", "False"]
    text = printed("-m", module, "-h")
    assert "--version" in text
    assert text == printed("-m", module, "--help")


def test_the_trainer_offers_its_names_too() -> None:
    assert [name for name in lipt.trainer.__all__ if not hasattr(lipt.trainer, name)] == []
    with pytest.raises(AttributeError, match=r"module 'lipt\.trainer' has no attribute 'Trainer'"):
        lipt.trainer.Trainer  # noqa: B018
