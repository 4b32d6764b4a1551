"""Checkpoints: a user's initial weights, also in torch's own files and from torch hub's folder.

Only operators and users name such files, never peers. Names and shapes are checked before values
are read. Wrappers prefix all names ("module."): the prefix that fits most tensors is removed or
added.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import WeightsError
from lipt.common.tensor_files import (
    SPARE_TENSORS,
    Container,
    TensorSpec,
    Weights,
    differences,
    quoted,
    read_container,
    specs_of,
)
from lipt.common.text import listed
from lipt.models.adapters import adapter_names, plain_name
from lipt.models.head import head_names

# Common keys of a model's weights in a checkpoint.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


def read_torch_file(path: Path) -> Any:
    """The file's content, with tensors on the CPU; unpickles no objects."""
    try:
        # torch warns about foreign pickles before it refuses them.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error


def hub_folder() -> Path:
    return Path(torch.hub.get_dir(), "checkpoints")


def hub_file(url: str) -> Path:
    """A file of torch hub's folder, downloaded if absent; the end of its name is its hash.

    OSError without a network; ValueError for content with another SHA-256.
    """
    path = hub_folder() / url.rpartition("/")[2]
    digest = path.stem.rpartition("-")[2]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), digest, progress=False)
        except RuntimeError as error:
            raise ValueError(f"{url}: {error}") from error
    own_digest = BlobName.of_file(path).sha256
    if not own_digest.startswith(digest):
        raise ValueError(f"{path} is damaged: its SHA-256 begins with {own_digest[: len(digest)]}")
    return path


def state_dict_in(content: Any) -> dict[str, torch.Tensor]:
    """A model's tensors by name: at the top, or under one of `_STATE_KEYS` or the only key."""
    parts = content if isinstance(content, Mapping) else {}
    if tensors := _tensors(parts):
        return tensors
    below = {
        str(key): tensors_below for key, part in parts.items() if (tensors_below := _tensors(part))
    }
    known = [key for key in _STATE_KEYS if key in below]
    if not known and len(below) != 1:
        keys = ", ".join(map(repr, below or parts))
        raise ValueError(f"no state dict among {keys or 'nothing'}: save model.state_dict() alone")
    return below[known[0] if known else next(iter(below))]


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    if not isinstance(part, Mapping):
        return {}
    return {str(key): item for key, item in part.items() if isinstance(item, torch.Tensor)}


# Batch norm's batch counter; older files lack it, and 0 works.
_COUNTER = "num_batches_tracked"


def read_checkpoint(
    container: Container,
    *,
    like: Mapping[str, TensorSpec],
    head: Collection[str],
    new_head: bool,
) -> tuple[Weights, str]:
    """A model's initial weights from an open file, by its names, and a summary.

    Narrower floats are widened exactly. With `new_head` the head may differ or be missing; all
    other tensors must match.
    """
    stored, new = container.specs, set(head) if new_head else set()
    body = {name: spec for name, spec in like.items() if name not in new}
    # One of the two is empty: the prefix to remove from the checkpoint's names, and to add.
    off = _prefix(stored, body)
    on = "" if off else _prefix(body, stored)
    own_names = {on + name[len(off) :]: name for name in stored if name.startswith(off)}
    differing: dict[str, TensorSpec | None] = {}
    taken: dict[str, str] = {}
    for name, spec in body.items():
        own = own_names.get(name)
        if own is not None and _fits(stored[own], spec):
            taken[name] = own
        elif own is not None or not name.endswith(_COUNTER):
            differing[name] = stored[own] if own else None
    placed = {own_names[name] for name in like if name in own_names}
    left_over = {name: spec for name, spec in stored.items() if name not in placed}
    # Not a head's: beside other body tensors, or with more than two dimensions.
    parts = {_part(name, on) for name in body}
    foreign = {
        name: spec
        for name, spec in left_over.items()
        if len(spec.shape) > 2 or _part(name, off) in parts
    }
    strange = foreign if new_head else left_over
    if differing or strange:
        remedy = "Give weights of this model, or name the model that they belong to."
        if new_head:
            shown = _named(sorted(head))
            remedy = f"But for the head ({shown}) all has to be the model's. {remedy}"
        elif differing.keys() <= set(head) and not foreign:
            remedy = (
                "That is the head alone: start with a new one (--new-head, or "
                "initialization.new_head=true), or give weights of this very model."
            )
        raise differences(differing, strange, like, remedy=remedy)
    weights = {name: container.tensor(own).to(like[name].dtype) for name, own in taken.items()}
    summary = f"theta* begins with {len(weights)} tensors of the weights given"
    summary += f"; new: {_named(name for name in like if name in new)}" if new else ""
    summary += f"; left over: {_named(left_over)}" if left_over else ""
    return weights, f"{summary}."


def read_initial(
    source: bytes | Path, model: nn.Module, *, new_head: bool, max_bytes: int
) -> tuple[Weights, str]:
    """As `read_checkpoint`, for a model; a file without its adapters leaves them as they are."""
    like, head = specs_of(model.state_dict()), head_names(model)
    added, most = adapter_names(model), len(like) + SPARE_TENSORS
    container = read_container(source, max_bytes=max_bytes, max_tensors=most)
    own = {name: name for name in like}
    if added and not any(name.endswith(tuple(added)) for name in container.specs):
        own = {plain_name(name): name for name in like if name not in added}
    weights, summary = read_checkpoint(
        container,
        like={name: like[own_name] for name, own_name in own.items()},
        head=head,
        new_head=new_head,
    )
    return {own[name]: tensor for name, tensor in weights.items()}, summary


def _fits(stored: TensorSpec, expected: TensorSpec) -> bool:
    both_float = stored.dtype.is_floating_point and expected.dtype.is_floating_point
    widened = both_float and stored.dtype.itemsize < expected.dtype.itemsize
    return stored.shape == expected.shape and (stored.dtype == expected.dtype or widened)


def _prefix(names: Iterable[str], other_names: Collection[str]) -> str:
    """The prefix whose removal turns most names into others."""
    parted = (name.split(".") for name in names)
    cuts = ((parts[:at], parts[at:]) for parts in parted for at in range(len(parts)))
    counts = Counter(
        "".join(f"{part}." for part in cut) for cut, rest in cuts if ".".join(rest) in other_names
    )
    most = max(counts.values(), default=0)
    best = sorted(prefix for prefix, count in counts.items() if count == most)
    if len(best) > 1 and best[0]:
        raise WeightsError(
            f"the weights fit the model in {len(best)} ways, under the prefixes "
            f"{', '.join(map(quoted, best))}. Save those that you mean alone."
        )
    return best[0] if best else ""


def _part(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).partition(".")[0]


def _named(names: Iterable[str]) -> str:
    return listed([quoted(name) for name in names], 10)
