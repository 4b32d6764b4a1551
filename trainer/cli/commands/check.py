"""`lipt check`: which images of a set cannot be used, before anything is run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import AllowModule, Json, modules_of
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.display.waiting import run_talking

if TYPE_CHECKING:
    from lipt.common.data.decoding_all import Decoded


@grouped
def check(
    *,
    data: Annotated[
        str, typer.Option(help="Image files, e.g. imagefolder:PATH, webdataset:PATH, parquet:PATH.")
    ],
    allow_module: AllowModule = None,
    json: Json = False,
) -> None:
    """Decode every image of a data set, and list all that cannot be used.

    The status is 1 where there are some. A coordinator is not needed.
    """
    from lipt.common.data.decoding_all import decode_all

    def work(tell: Callable[[str], None]) -> Decoded:
        tell(f"reading {data}")
        return decode_all(
            data,
            allowed_modules=modules_of(allow_module, data),
            progress=lambda done, total: tell(f"decoding {data}: {done} of {total}"),
        )

    decoded = run_talking(work)
    print_result(decoded, _lines(decoded), as_json=json)
    if decoded.unusable:
        raise typer.Exit(1)


def _lines(decoded: Decoded) -> Iterator[str]:
    for image in decoded.unusable:
        yield f"image {image.id} ({image.place}): {image.problem}"
    yield (
        f"{len(decoded.unusable)} of {decoded.num_images} images of {decoded.source} cannot be used"
    )
