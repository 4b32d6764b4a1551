"""Notebook: how a subset shows itself in a cell, as a small table, with pictures of its data."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from lipt.trainer.subsets.subset import Subset

_MAX_PIXELS, _SHOWN_PIXELS = 96, 56


def as_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, one below the other."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def facts_of(subset: Subset) -> list[tuple[str, str]]:
    """What a person wants to know of a subset at a glance."""
    data, costs = subset.manifest.get("data"), subset.manifest.get("costs")
    num_examples = data.get("num_examples") if isinstance(data, Mapping) else None
    share = f" of {num_examples:,} ({len(subset) / num_examples:.1%})" if num_examples else ""
    facts = [("examples", f"{len(subset):,}{share}"), ("strategy", subset.strategy)]
    if subset.is_weighted:
        facts.append(("weights", f"{subset.weights.min():.3g} to {subset.weights.max():.3g}"))
    if isinstance(costs, Mapping):
        seconds = sum(value for name, value in costs.items() if name.endswith("_seconds"))
        facts.append(("took", f"{seconds:.1f} s"))
    facts.append(("digest", subset.digest[:12]))
    if subset.stopped_early:
        facts.append(("stopped early", subset.stopped_early))
    return facts


def thumbnails(pictures: Sequence[tuple[Any, str]]) -> str:
    """Images in a row with a line below each; what is no image has its line alone."""
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
    """A picture of what an example may be; None where it is none."""
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
