"""Image folders: a directory for each class, in the order of torchvision's `ImageFolder`.

Hidden and system directories are no classes, and their files no images. Other files than images are
counted by suffix, in the note of the rows.

Shapes: N images, C classes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.text import encodable, escaped, listed
from lipt.data.images.formats import SUFFIXES
from lipt.data.sources.address import Address
from lipt.data.sources.rows import EncodedRows, SourceLabels, source_names
from lipt.data.sources.storage import Stamp, open_regular

# torchvision's.
_SUFFIXES = tuple(suffix for suffix in SUFFIXES if suffix != ".gif")
_FOLDER = "It has to hold a directory for each class with at least one image in it."
_PARTS = {"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"}
# Suffixes and directories named in a note.
_MOST_NAMED = 5


def imagefolder_rows(address: Address) -> EncodedRows:
    """The images below each class's directory; classes without any are `empty_folders`.

    With `source=folder`, the classes' directories are below one of each source.
    """
    source, path = address.source, address.path
    if "source" in address:
        address.one_of("source", ["folder"])
        return _by_source(source, path)
    try:
        root = identity_of(path)
        with os.scandir(path) as entries:
            directories = {entry.name: os.path.isdir(entry.path) for entry in entries}  # noqa: PTH112
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: {path} cannot be used: {error}. {_FOLDER}") from error
    starts = [Path(path) / name for name in sorted(directories) if directories[name]]
    classes = [at for at in starts if not is_hidden(at.name) and identity_of(at) != root]
    ignored = Counter[str]()
    by_class = {at.name: _images_in(at, {root, identity_of(at)}, ignored) for at in classes}
    beside = sum(_is_image(name) for name, is_folder in directories.items() if not is_folder)
    hidden = [at.name for at in starts if is_hidden(at.name)]
    note = note_on(ignored, beside, hidden)
    _require_classes(source, path, by_class, beside, note)
    files = [file for of_class in by_class.values() for file in of_class]
    counts_C = torch.tensor([len(of_class) for of_class in by_class.values()])
    return _rows_of_files(
        *(source, by_class, torch.arange(len(by_class)).repeat_interleave(counts_C), files),
        empty_folders=tuple(encodable(str(at)) for at in classes if not by_class[at.name]),
        note=note,
    )


def _by_source(source: str, path: str) -> EncodedRows:
    try:
        entries = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: {path} cannot be used: {error}. {_FOLDER}") from error
    names = [name for name in entries if not is_hidden(name)]
    sources = source_names(names, f"{source}: {path}")
    folders = [f"{path}{os.sep}{name}" for name in names]
    parts = [imagefolder_rows(Address(f"imagefolder:{at}", {}, path=at)) for at in folders]
    classes = sorted({name for part in parts for name in part.class_names})
    labels = [
        torch.tensor([classes.index(name) for name in part.class_names])[part.labels_N]
        for part in parts
    ]
    files = [file for part in parts for file in part.files or ()]
    sizes = torch.tensor([len(part) for part in parts])
    return _rows_of_files(
        *(source, classes, torch.cat(labels), files),
        empty_folders=tuple(folder for part in parts for folder in part.empty_folders),
        note="; ".join(part.note for part in parts if part.note),
        sources=SourceLabels(sources, torch.arange(len(names)).repeat_interleave(sizes)),
    )


def _rows_of_files(
    source: str,
    classes: Iterable[str],
    labels_N: Tensor,
    files: Sequence[str],
    *,
    empty_folders: tuple[str, ...],
    note: str,
    sources: SourceLabels | None = None,
) -> EncodedRows:
    return EncodedRows(
        *(source, tuple(classes), labels_N),
        open=lambda row: open_regular(files[row]),
        where=files.__getitem__,
        files=files,
        stamp=Stamp.of(files, sorted({str(Path(file).parent) for file in files})),
        empty_folders=empty_folders,
        note=note,
        sources=sources,
    )


def _is_image(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES)


def _images_in(folder: Path, seen: set[tuple[int, int]], ignored: Counter[str]) -> list[str]:
    files = [f"{at}{os.sep}{name}" for at, names in walk_once(folder, seen) for name in names]
    images = list(filter(_is_image, files))
    ignored.update(suffixes_of(set(files).difference(images)))
    return images


def suffixes_of(files: Iterable[str]) -> Iterator[str]:
    return (Path(file).suffix.lower() or "without a suffix" for file in files)


def note_on(ignored: Counter[str], beside: int = 0, hidden: Sequence[str] = ()) -> str:
    """A clause on ignored files by suffix, images beside the classes and hidden directories."""
    clauses = []
    if ignored:
        kinds = [f"{count} {suffix}" for suffix, count in ignored.most_common()]
        clauses.append(f"{_counted(ignored.total(), 'file')}: {listed(kinds, _MOST_NAMED)}")
    if beside:
        clauses.append(f"{_counted(beside, 'image')} beside the directories of the classes")
    if hidden:
        clauses.append(f"the hidden directories {listed(sorted(hidden), _MOST_NAMED)}")
    return escaped(f"ignored {'; '.join(clauses)}") if clauses else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _require_classes(
    source: str, path: str, by_class: Mapping[str, list[str]], beside: int, note: str
) -> None:
    if not any(by_class.values()):
        lacking = f"no image in its {len(by_class)} directories" if by_class else "no directory"
        if beside:
            lacking += f", and {_counted(beside, 'image')} without a class beside them"
        elif note:
            lacking += f" ({note})"
        raise DataError(f"{source}: {path} cannot be used: there is {lacking}. {_FOLDER}")
    # Neither `train` and `test` nor a directory around all classes is a class.
    nested = all(Path(file).parent.name != name for name in by_class for file in by_class[name])
    if nested and (len(by_class) == 1 or {name.lower() for name in by_class} <= _PARTS):
        best = next((name for name in by_class if name.lower().startswith("train")), min(by_class))
        raise DataError(
            f"{source}: the images of {path} lie deeper, in directories of {', '.join(by_class)}, "
            f"which are no classes. Name one of these: imagefolder:{Path(path) / best}"
        )


# Directories and files that systems leave beside a user's.
_OF_SYSTEMS = frozenset(
    (
        *("__MACOSX", "__pycache__", "$RECYCLE.BIN", "System Volume Information", "lost+found"),
        *("@eaDir", "@Recycle", "@Recently-Snapshot", "@tmp", "#recycle", "#snapshot"),
        *("Thumbs.db", "desktop.ini"),
    )
)


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _OF_SYSTEMS


def walk_once(
    folder: str | os.PathLike[str], seen: set[tuple[int, int]]
) -> list[tuple[str, list[str]]]:
    """The directories below a folder, sorted, and their files' names, sorted, without hidden ones.

    Links are followed, but no directory is visited twice, nor one of those `seen`: a loop of links
    would repeat all files. Raises a DataError for a directory that cannot be listed.
    """
    visited = []
    for at, folders, names in os.walk(folder, onerror=_refuse_to_skip, followlinks=True):
        visited.append((at, sorted(name for name in names if not is_hidden(name))))
        own = (name for name in sorted(folders) if not is_hidden(name))
        folders[:] = [name for name in own if _is_new(f"{at}{os.sep}{name}", seen)]
    return sorted(visited)


def _refuse_to_skip(error: OSError) -> NoReturn:
    raise DataError(
        f"the directory {error.filename} cannot be listed: {error.strerror}. Let this user read it."
    ) from error


def identity_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """A directory's device and inode; raises OSError."""
    status = os.stat(path)  # noqa: PTH116 - of a million paths
    return status.st_dev, status.st_ino


def _is_new(path: str, seen: set[tuple[int, int]]) -> bool:
    try:
        identity = identity_of(path)
    except OSError:
        return False  # a broken link
    if identity in seen:
        return False
    seen.add(identity)
    return True
