"""Image-text pairs: cached features of two encoders (towers), with latent classes as labels.

    pairs:FOLDER    any/name.jpg and any/name.txt, the whole text of which is the caption
    pairs:TABLE     a .csv, .tsv, .jsonl or .parquet file with a row for each pair: its caption,
                    and its file's path relative to the table's folder

A tower's name is `module:function`, which is called once, without arguments. It returns a batch
encoder, such as a PyTorch module, which is set to `eval`:

    image tower    float32, B x 3 x S x S, RGB, 0 to 1, on the CPU    ->  B x D, floating point
    text tower     a list of B texts                                  ->  B x D, floating point

Row i must depend on example i alone; rows are normalized here. Features are computed again when the
pairs' files, the towers' names or modules, or the `weights=` files change. Named classes are
zero-shot: each image gets the nearest text's class. Without names, classes are clusters.

Shapes: N pairs, B of a batch, C classes, M of the sample, S pixels a side, D features.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.computation import computation
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import TOWERS, call_factory, load_factory, module_of
from lipt.common.text import listed
from lipt.data.images.formats import SUFFIXES
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.parallel import Progress, threads_for
from lipt.data.sources.address import Address, at_home
from lipt.data.sources.folders import identity_of, note_on, suffixes_of, walk_once
from lipt.data.sources.rows import ColumnRows, EncodedRows
from lipt.data.sources.storage import (
    Stamp,
    allocate_in_cache,
    cached_tensors,
    open_regular,
    read_lines,
)
from lipt.data.sources.tables.reading import open_table
from lipt.data.sources.tables.table import require_columns

logger = logging.getLogger(__name__)

PAIR_OPTIONS = (*TOWERS, "image", "caption", "classes", "clusters", "size", "batch", "weights")
# A table's scheme by its suffix.
_SCHEMES = {"csv": "csv", "tsv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet"}
_HOW = "Put name.txt beside each name.jpg, or name a table with a column of files and of captions."

# Version of the cached tensors; raise it whenever the same pairs would give others.
_FORMAT = 2
_SIZE, _BATCH = 224, 256
_MOST_CLUSTERS, _PAIRS_PER_CLUSTER = 100, 50
_SAMPLED_PER_CLUSTER = 256
_ROUNDS = 20
_BLOCK_VALUES = 2**24


@dataclass(frozen=True)
class FoundPairs:
    """Image files and captions by row number; `captions` is None if each has its own file."""

    source: str
    images: Sequence[str]
    captions: Sequence[str] | None
    stamp: Stamp
    note: str = ""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[str, str]:
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {row} in {self.source} with {len(self)} pairs")
        return self.images[row], self.caption(row)

    def caption(self, row: int) -> str:
        if self.captions is not None:
            return self.captions[row]
        path = _caption_file(self.images[row])
        try:
            return Path(path).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.source}: the caption of row {row}, {path}, cannot be read: {error}. Write "
                "it as UTF-8."
            ) from error


def open_pairs(source: str) -> FoundPairs:
    """The image files and captions in row order; imports no tower."""
    address = Address.parse(source, PAIR_OPTIONS)
    if address.scheme != "pairs" or not address.path:
        raise ConfigError(f"{source!r} names no pairs. Write pairs:FOLDER or pairs:TABLE.")
    return _find_pairs(address)


def _find_pairs(address: Address) -> FoundPairs:
    path = Path(address.path)
    if path.is_dir():
        return _pairs_of_folder(address.source, path)
    return _pairs_of_table(address, path)


def _pairs_of_folder(source: str, folder: Path) -> FoundPairs:
    files, lonely, ignored = list[str](), list[str](), Counter[str]()
    for at, names in walk_once(folder, {identity_of(folder)}):
        there = set(names)
        for name in names:
            if name.lower().endswith(SUFFIXES):
                (files if _caption_file(name) in there else lonely).append(f"{at}{os.sep}{name}")
            elif not name.endswith(".txt"):
                ignored.update(suffixes_of([name]))
    if lonely:
        raise DataError(
            f"{source}: {len(lonely)} images have no caption beside them: "
            f"{', '.join(lonely[:20])}. {_HOW}"
        )
    if not files:
        raise DataError(f"{source}: there is no image with a caption in {folder}. {_HOW}")
    stamp = Stamp.of([*files, *map(_caption_file, files)], _folders(files))
    note = note_on(ignored)
    if note:
        logger.warning("%s: %s", source, note)
    return FoundPairs(source, files, None, stamp, note)


def _caption_file(image: str) -> str:
    return f"{os.path.splitext(image)[0]}.txt"  # noqa: PTH122 - of a million names


def _folders(files: list[str]) -> list[str]:
    return sorted({os.path.dirname(file) for file in files})  # noqa: PTH120 - of a million names


def _pairs_of_table(address: Address, path: Path) -> FoundPairs:
    suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if suffix not in _SCHEMES:
        raise DataError(
            f"{address.source}: {path} is no table of pairs. Name a .csv, .tsv, .jsonl or .parquet "
            "file, or a folder."
        )
    table = open_table(Address(address.source, {}, _SCHEMES[suffix], str(path)))
    image, caption = address.text("image", "file_name"), address.text("caption", "caption")
    require_columns(table, (image,), "image")
    require_columns(table, (caption,), "caption")
    files, captions, missing = list[str](), list[str](), list[int]()
    cells = table.read([image, caption])
    for name, text in zip(cells[image].to_pylist(), cells[caption].to_pylist(), strict=True):
        if not str(name or "").strip() or text is None:
            missing.append(len(files))
        files.append(str(path.parent / str(name).strip()))
        captions.append(str(text).strip())
    if missing:
        raise DataError(
            f"{address.source}: {len(missing)} of {len(files)} rows of {table.name} lack a file "
            f"name or a caption: rows {listed(missing, 20)}. Fill them in or remove them."
        )
    if not files:
        raise DataError(f"{address.source}: {table.name} has no rows. {_HOW}")
    stamp = Stamp.of([*files, str(path)], [str(path), *_folders(files)])
    return FoundPairs(address.source, files, captions, stamp)


def pairs_rows(
    address: Address, allowed_modules: Collection[str], progress: Progress | None = None
) -> ColumnRows:
    """The features of all pairs, with their latent classes as labels."""
    source = address.source
    specs = [address.text(option) for option in TOWERS]
    for option, spec in zip(TOWERS, specs, strict=True):
        if not spec:
            raise ConfigError(f"{source} names no {option}. Add {option}=module:function.")
    towers = [Tower(spec, load_factory(spec, allowed_modules=allowed_modules)) for spec in specs]
    pairs = _find_pairs(address)
    classes = _classes(address)
    usual = max(2, min(_MOST_CLUSTERS, len(pairs) // _PAIRS_PER_CLUSTER))
    asked = address.number("clusters", usual, minimum=2, maximum=2**16)
    num_clusters = max(2, min(asked, len(pairs)))
    size = address.number("size", _SIZE, maximum=4096)
    batch = address.number("batch", _BATCH, maximum=2**16)
    # The towers' modules were imported above.
    modules = [getattr(sys.modules[module_of(spec)], "__file__", None) or "" for spec in specs]
    origin = Stamp.of([*modules, *address.names("weights")])
    depends_on = (
        *(
            _FORMAT,
            tuple(specs),
            origin.digest,
            pairs.stamp.digest,
            str(Path(address.path).resolve()),
        ),
        *(address.text("image"), address.text("caption"), size, batch, classes, num_clusters),
    )

    def embed() -> Mapping[str, Tensor]:
        rows = _embedded(pairs, towers, size, batch, progress)
        if not classes:
            centres_CD = clusters(rows["images"], num_clusters)
        else:
            starts = range(0, len(classes), batch)
            parts = [list(classes[start : start + batch]) for start in starts]
            centres_CD = torch.cat([towers[1].rows(part, len(part)) for part in parts])
        return {**rows, "labels": nearest(rows["images"], centres_CD)}

    tensors = cached_tensors("pairs", depends_on, embed)
    images_ND, names = tensors["images"], classes or tuple(map(str, range(num_clusters)))
    column = Column("", ColumnType.FLOAT32, (images_ND.shape[1],))
    return ColumnRows(
        *(source, names, tensors["labels"], (column,), {"": images_ND}, tensors["captions"]),
        stamp=pairs.stamp,
        note=pairs.note,
    )


def _classes(address: Address) -> tuple[str, ...]:
    if "classes" not in address:
        return ()
    if "clusters" in address:
        raise ConfigError(
            f"{address.source}: classes= and clusters= exclude each other. Leave one out."
        )
    file = at_home(address.text("classes"))
    lines = map(str.strip, read_lines(address.source, file))
    classes = tuple(line for line in lines if line)
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise DataError(
            f"{address.source}: {file} has {len(classes)} prompts, {len(set(classes))} of them "
            "different. Write two or more, each once."
        )
    return classes


def _embedded(
    pairs: FoundPairs, towers: Sequence[Tower], size: int, batch: int, progress: Progress | None
) -> dict[str, Tensor]:
    (image_tower, text_tower), rows = towers, dict[str, Tensor]()
    files = EncodedRows(
        *(pairs.source, (), torch.zeros(len(pairs), dtype=torch.int64)),
        open=lambda row: open_regular(pairs.images[row]),
        where=pairs.images.__getitem__,
    )
    for start in range(0, len(pairs), batch):
        if progress is not None:
            progress(start, len(pairs))
        ids = range(start, min(start + batch, len(pairs)))
        captions = [pairs.caption(row) for row in ids]
        images_BCSS = files.batch(ids, 3, (size, size), threads_for(size**2)).float() / 255
        made = {
            "images": image_tower.rows(images_BCSS, len(ids)),
            "captions": text_tower.rows(captions, len(ids)),
        }
        image, text = (values_BD.shape[1] for values_BD in made.values())
        if start == 0:
            rows = {name: allocate_in_cache((len(pairs), image), torch.float32) for name in made}
        if not image == text == rows["images"].shape[1]:
            raise DataError(
                f"the image tower {image_tower.spec} gives {image} columns, and the text tower "
                f"{text_tower.spec} {text}. Give two that project into one space, as CLIP's do."
            )
        for name, values_BD in made.items():
            rows[name][start : start + len(ids)] = values_BD
    if progress is not None:
        progress(len(pairs), len(pairs))
    return rows


@dataclass(frozen=True)
class Tower:
    """One encoder, built on first use."""

    spec: str
    factory: Callable[[], Any]

    @cached_property
    def encode(self) -> Callable[[Any], Any]:
        encode = call_factory(self.spec, self.factory)
        if not callable(encode):
            raise ConfigError(
                f"{self.spec!r} returns a {type(encode).__name__}, which cannot be called with a "
                "batch. Return the module or function that encodes one."
            )
        return encode.eval() if isinstance(encode, nn.Module) else encode

    def rows(self, batch: Any, size: int) -> Tensor:
        """Features of a batch, size x D, float32 on the CPU, with unit length; zeros stay zeros."""
        encode = self.encode
        try:
            with torch.no_grad():
                encoded = torch.as_tensor(encode(batch))
        except Exception as error:
            raise DataError(
                f"the tower {self.spec} failed on a batch of {size} with {type(error).__name__}: "
                f"{error}. Try it alone on such a batch."
            ) from error
        if encoded.ndim != 2 or len(encoded) != size or not encoded.is_floating_point():
            raise DataError(
                f"the tower {self.spec} gives {encoded.dtype} of shape {list(encoded.shape)} for a "
                f"batch of {size}. Let it return a floating-point row for each example."
            )
        rows_BD = encoded.detach().cpu().double()
        if not bool(rows_BD.isfinite().all()):
            raise DataError(
                f"the tower {self.spec} gives values that are not finite. Compute in float32."
            )
        return functional.normalize(rows_BD, dim=1).float()


def nearest(rows_ND: Tensor, centres_CD: Tensor) -> Tensor:
    """Index of the centre with the largest inner product, the first of ties; N, int64."""
    with computation(1):
        blocks = torch.split(rows_ND, max(1, _BLOCK_VALUES // max(centres_CD.shape)))
        return torch.cat([(rows_BD @ centres_CD.T).argmax(dim=1) for rows_BD in blocks])


def clusters(rows_ND: Tensor, num_clusters: int) -> Tensor:
    """Centres of spherical k-means on a sample, C x D with unit length; deterministic."""
    generator = torch.Generator().manual_seed(0)
    size = min(len(rows_ND), _SAMPLED_PER_CLUSTER * num_clusters)
    sample_M = torch.randperm(len(rows_ND), generator=generator)[:size].sort().values
    sample_MD = rows_ND[sample_M]
    with computation(1):
        centres_CD = _spread(sample_MD, num_clusters, generator)
        for _ in range(_ROUNDS):
            labels_M = nearest(sample_MD, centres_CD)
            sums_CD = torch.zeros_like(centres_CD).index_add_(0, labels_M, sample_MD)
            # A centre without rows does not move.
            found_C = sums_CD.norm(dim=1) > 0
            centres_CD[found_C] = functional.normalize(sums_CD[found_C], dim=1)
    return centres_CD


def _spread(rows_MD: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Initial rows, each drawn by its squared distance from earlier ones (k-means++)."""
    chosen = [int(torch.randint(len(rows_MD), (1,), generator=generator))]
    distances_M = torch.full((len(rows_MD),), torch.inf)
    while len(chosen) < num_clusters:
        to_last_M = (2 - 2 * rows_MD @ rows_MD[chosen[-1]]).clamp(min=0)
        distances_M = torch.minimum(distances_M, to_last_M)
        # Only duplicates are left: draw uniformly.
        weights_M = distances_M if bool(distances_M.sum() > 0) else torch.ones_like(distances_M)
        chosen.append(int(weights_M.multinomial(1, generator=generator)))
    return rows_MD[chosen].clone()
