"""Formatting: percentages, tables, differences, notebook HTML, and JSON values."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from lipt.common.text import printable

if TYPE_CHECKING:
    from PIL.Image import Image

_MAX_PIXELS, _SHOWN_PIXELS = 96, 56


def format_percent(share: float) -> str:
    """Format an accuracy: 0.4567 is "45.7%"."""
    return f"{100 * share:.1f}%"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format columns as wide as their widest cell, two spaces apart; cells have no line breaks."""
    lines = [tuple(map(printable, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """List settings whose JSON values differ, nested too: "its recipe.steps is 3, now it is 4"."""
    return "; ".join(_each(found, wanted, within=""))


def _each(found: Mapping[str, Any], wanted: Mapping[str, Any], within: str) -> Iterator[str]:
    for name in dict.fromkeys((*wanted, *found)):
        then, now, label = found.get(name), wanted.get(name), f"{within}{name}"
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            yield from _each(then, now, within=f"{label}.")
        elif then != now:
            yield f"its {label} is {then!r}, now it is {now!r}"


def to_jsonable(value: Any) -> Any:
    """Convert views to JSON values: times become ISO 8601, infinities and NaN null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum | PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    dump = getattr(value, "model_dump", None)
    return to_jsonable(dump(mode="json")) if dump else value


def as_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Format a table of names and texts as HTML for a notebook."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def thumbnails(pictures: Sequence[tuple[Any, str]]) -> str:
    """Format images in a row with captions as HTML; other examples show only the caption."""
    cells = "".join(
        "<figure style='display:inline-block;margin:4px;text-align:center'>"
        f"{_picture(example)}<figcaption>{escape(text)}</figcaption></figure>"
        for example, text in pictures
    )
    return f"<div>{cells}</div>"


def _picture(example: Any) -> str:
    image = _image(example)
    if image is None:
        return ""
    image.thumbnail((_MAX_PIXELS, _MAX_PIXELS))
    content = io.BytesIO()
    image.save(content, "PNG")
    source = base64.b64encode(content.getvalue()).decode()
    style = f"height:{_SHOWN_PIXELS}px;image-rendering:pixelated"
    return f"<img style='{style}' src='data:image/png;base64,{source}'>"


def _image(example: Any) -> Image | None:
    import numpy as np  # noqa: PLC0415 - slow, as Pillow
    from PIL import Image  # noqa: PLC0415

    if isinstance(example, Image.Image):
        return example.convert("RGB")
    if "uint8" not in str(getattr(example, "dtype", "")):
        return None
    pixels = np.asarray(example)
    # Channels come first in tensors, last in arrays.
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[-1] not in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] == 3):
        return Image.fromarray(np.ascontiguousarray(pixels))
    return None
