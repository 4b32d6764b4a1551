"""HTML for a notebook: a small table, or pictures with captions."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

_MAX_PIXELS, _SHOWN_PIXELS = 96, 56


def as_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def thumbnails(pictures: Sequence[tuple[Any, str]]) -> str:
    """Images in a row with captions; what is no image has its caption alone."""
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


def _image(example: Any) -> Image.Image | None:
    if isinstance(example, Image.Image):
        return example.convert("RGB")
    if "uint8" not in str(getattr(example, "dtype", "")):
        return None
    pixels = np.asarray(example)
    # Tensors have their channels first, arrays last.
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[-1] not in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] == 3):
        return Image.fromarray(np.ascontiguousarray(pixels))
    return None
