"""Opening data: a command that reads a large set says how far it is, and what it scales."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lipt.common.text.terminal import say
from lipt.trainer.cli.display.waiting import run_talking

if TYPE_CHECKING:
    from lipt.common.data import Dataset


def open_talking(source: str, *, image_size: int | None, modules: Collection[str]) -> Dataset:
    """A data set, read with a line on standard error whenever that takes long.

    Args:
        source: as `--data` has it.
        image_size: pixels a side that images are scaled to, where it was given.
        modules: that may be imported.

    Raises:
        LiptError: as `open_dataset`.
    """
    dataset = run_talking(lambda tell: open_telling(source, image_size, modules, tell))
    if dataset.scaling:
        say(f"{source}: {dataset.scaling}", err=True)
    return dataset


def open_telling(
    source: str, image_size: int | None, modules: Collection[str], tell: Callable[[str], None]
) -> Dataset:
    """As `open_talking`, for work that says itself how it goes."""
    from lipt.common.data import open_dataset

    tell(f"reading {source}")
    return open_dataset(
        source,
        image_size=image_size,
        allowed_modules=modules,
        progress=lambda done, total: tell(f"reading {source}: {done} of {total}"),
    )
