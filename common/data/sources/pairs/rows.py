"""Rows of image-text pairs: where they are found, and how they are read."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.feature_file import FeatureRows
from lipt.common.data.sources.index import Stamp, kept
from lipt.common.data.sources.pairs.embedding import Embedding, find_tower
from lipt.common.data.sources.pairs.files import FoundPairs, find_pairs
from lipt.common.data.sources.tables.query import Query, split_query
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import TOWERS, module_of
from lipt.common.inputs.columns import Column, ColumnType

# Rows of pairs: two towers' rows of images and captions, made once and kept.
#
# They are what a features file with `paired_features` holds, so that everything that is done with
# such a file is done with pairs. What they were made of is compared at each opening: the pairs'
# files, the towers' names, the files of their modules, and those that `weights=` names.

# What the tensors mean; raised whenever the same pairs would be given other ones.
FORMAT = 1
OPTIONS = (*TOWERS, "image", "caption", "classes", "clusters", "size", "batch", "weights")
_SIZE, _BATCH = 224, 256
_MOST_CLUSTERS, _PAIRS_PER_CLUSTER = 100, 50


def pairs_rows(
    source: str, path: Path, allowed_modules: Collection[str], progress: Progress | None = None
) -> FeatureRows:
    """The rows of all pairs, with their latent classes as labels.

    Args:
        source: the name under which the user opens them.
        path: a folder or a table, and after a question mark the options, of `OPTIONS`.
        allowed_modules: those that towers may be imported from.
        progress: called with (done, total) pairs while they are embedded.

    Raises:
        ConfigError: a tower is not named or cannot be had, or an option cannot be used.
        FactoryNotAllowedError: a tower's module is not allowed.
        DataError: the pairs, the classes or what a tower gives cannot be used.
        MissingExtraError: the table is of Parquet, and pyarrow is not installed.
    """
    place, query = split_query(source, path, OPTIONS)
    specs = [_spec(query, option) for option in TOWERS]
    makers = [find_tower(spec, allowed_modules) for spec in specs]
    pairs = _found(query, place)
    classes = _classes(query)
    num_clusters = _num_clusters(query, len(pairs))
    size = query.number("size", _SIZE, minimum=1, maximum=4096)
    batch = query.number("batch", _BATCH, minimum=1, maximum=2**16)
    towers = Stamp.of([*map(_module_file, specs), *query.names("weights")])
    depends_on = (
        *(FORMAT, tuple(specs), towers.digest, pairs.stamp.digest, str(place.resolve())),
        *(_columns(query), size, batch, classes, num_clusters),
    )

    def embed() -> Mapping[str, Tensor]:
        image_tower, text_tower = (make() for make in makers)
        embedding = Embedding(image_tower, text_tower, size, batch, classes, num_clusters)
        return embedding.of(pairs, progress)

    tensors = kept("pairs", depends_on, embed)
    images_ND = tensors["images"]
    return FeatureRows(
        source=source,
        names=classes or tuple(map(str, range(num_clusters))),
        labels_N=tensors["labels"],
        columns=(Column("", ColumnType.FLOAT32, (images_ND.shape[1],)),),
        tensors={"": images_ND},
        stamp=pairs.stamp,
        paired_NP=tensors["captions"],
    )


def open_pairs(source: str) -> FoundPairs:
    """The image files and captions themselves, in the order of the rows; no tower is imported.

    Args:
        source: as it is opened for selection, `pairs:PATH?...`; what it says of towers may be
            left out.

    Raises:
        ConfigError: it does not name pairs, or an option cannot be used.
        DataError: the pairs cannot be used.
    """
    kind, _, path = source.partition(":")
    if kind != "pairs" or not path:
        raise ConfigError(f"{source!r} names no pairs. Write pairs:FOLDER or pairs:TABLE.")
    place, query = split_query(source, Path(path).expanduser(), OPTIONS)
    return _found(query, place)


def _found(query: Query, place: Path) -> FoundPairs:
    image, caption = _columns(query)
    return find_pairs(query.source, place, image=image, caption=caption)


def _columns(query: Query) -> tuple[str, str]:
    return query.text("image", "file_name"), query.text("caption", "caption")


def _spec(query: Query, option: str) -> str:
    spec = query.text(option, "")
    if not spec:
        raise ConfigError(
            f"{query.source} does not say what makes rows of its pairs. Add "
            f"{option}=module:function."
        )
    return spec


def _classes(query: Query) -> tuple[str, ...]:
    """The lines of the file that names the classes; none without one."""
    if "classes" not in query:
        return ()
    if "clusters" in query:
        raise ConfigError(f"{query.source}: classes= and clusters= are two ways. Leave one out.")
    file = Path(query.text("classes", "")).expanduser()
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{query.source}: the classes in {file} cannot be read: {error}. Name a text file with "
            "a class's prompt on each line."
        ) from error
    classes = tuple(line.strip() for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise DataError(
            f"{query.source}: {file} has {len(classes)} prompts, {len(set(classes))} of them "
            "different. Write two or more, each once."
        )
    return classes


def _num_clusters(query: Query, num_pairs: int) -> int:
    usual = max(2, min(_MOST_CLUSTERS, num_pairs // _PAIRS_PER_CLUSTER))
    asked = query.number("clusters", usual, minimum=2, maximum=2**16)
    return max(2, min(asked, num_pairs))


def _module_file(spec: str) -> str:
    """Where a tower's module lies, which is imported by now."""
    return getattr(sys.modules[module_of(spec)], "__file__", None) or ""
