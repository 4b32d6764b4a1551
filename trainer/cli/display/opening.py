"""Opening data: a command that reads a large set says how far it is, and what it scales."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lipt.common.text import say
from lipt.trainer.cli.display.waiting import run_talking

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.trainer.client.client import Client


def open_talking(
    source: str,
    *,
    image_size: int | None,
    modules: Collection[str],
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """A data set, read with a line on standard error whenever that takes long.

    Args:
        source: as `--data` has it.
        image_size: pixels a side that images are scaled to, where it was given.
        modules: that may be imported.
        quarantined: ids of images that a coordinator leaves out; they may be broken.

    Raises:
        LiptError: as `open_dataset`.
    """
    dataset = run_talking(lambda tell: open_telling(source, image_size, modules, tell, quarantined))
    if dataset.scaling:
        say(f"{source}: {dataset.scaling}", err=True)
    return dataset


def open_telling(
    source: str,
    image_size: int | None,
    modules: Collection[str],
    tell: Callable[[str], None],
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """As `open_talking`, for work that says itself how it goes."""
    from lipt.common.data import Bearable, open_dataset

    tell(f"reading {source}")
    return open_dataset(
        source,
        image_size=image_size,
        allowed_modules=modules,
        progress=lambda done, total: tell(f"reading {source}: {done} of {total}"),
        bearable=Bearable(known=quarantined),
    )


def left_out_by(client: Client) -> tuple[int, ...]:
    """The ids of the images that a coordinator leaves out of its data, as they are broken."""
    dataset = client.info().dataset
    return () if dataset is None else dataset.quarantined
