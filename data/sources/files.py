"""Files of a data set: bundled ones, CIFAR, features, distilled sets.

Bundled sets are in installed packages; scikit-learn's files are read without its slow import. A
name that ends in "-test" takes every fifth row of each class, "-train" the rest.

A feature file has vectors of another model, in one safetensors file with their labels:

X                 N x d, or N x anything: numbers of any type
y                 N class numbers from 0; floats for regression; N x C of 0 and 1 for labels
paired_features   N x p, the other half of each pair, such as an image's caption; for
                  strategies on pairs, not a model's input
class_names       in the metadata: a JSON list of the class names

`lipt distill` writes a folder with `synthetic.safetensors`: `images_NCHW`, uint8, by stage, then by
class; `labels_N` and `stages_N`, int64 from 0; in its metadata `class_names`, a JSON list, and
`manifest`, JSON of their creation.

Shapes: N examples, C channels, H x W pixels, D columns.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.errors import BlobTooLargeError, DataError, WeightsError
from lipt.common.imports import missing_extra
from lipt.common.tensor_files import Container, read_container
from lipt.data.groups import ranks_in_groups
from lipt.data.inputs.specs import MAX_DIMENSIONS, Column, ColumnType
from lipt.data.inputs.standardization import feature_scale, scaled_features, stored
from lipt.data.sources.address import Address
from lipt.data.sources.rows import (
    ArrayRows,
    ColumnRows,
    Labels,
    is_texts,
    labels_of_targets,
    require_labels,
    require_no_probabilities,
)
from lipt.data.sources.storage import Stamp
from lipt.data.sources.tables.reading import standardized_column
from lipt.data.sources.tables.texts import hashing_tokenizer, text_columns
from lipt.data.targets.values import label_values, number_values

_TABLES = {"breast_cancer": "breast_cancer.csv", "wine": "wine_data.csv"}
_TEST_EVERY = 5
# The digits' brightnesses are 0..16.
_MAX_BRIGHTNESS = 16
_NUM_DIGITS = 10
# ImageNet's validation set has 6% (Northcutt et al. 2021, arXiv:2103.14749).
_MISLABELLED_SHARE = 0.05

# Packages with at least 250 paragraphs, present in all distributions.
_TOPICS = ("asyncio", "decimal", "email", "http", "importlib", "logging", "unittest", "xml")
_FILE_OF = {"decimal": "_pydecimal.py"}
_FEWEST_WORDS = 8
# Longer than three in four paragraphs.
_LENGTH = 32
_VOCABULARY = 2**13

FILE_NAME = "synthetic.safetensors"
IMAGES, LABELS, STAGES = "images_NCHW", "labels_N", "stages_N"
CLASS_NAMES, MANIFEST = "class_names", "manifest"

_EXAMPLES, _LABELS, _PAIRED = "X", "y", "paired_features"
_KNOWN = {_EXAMPLES, _LABELS, _PAIRED}

# The file may have any size, its header may not.
_MAX_BYTES = 2**50
_MAX_TENSORS = 16
_MAX_METADATA_BYTES = 2**22
_HOW = "Write safetensors.torch.save_file({'X': N x d, 'y': N class numbers}, PATH)."


def _bundled_file(source: str, name: str) -> Path:
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise missing_extra("scikit-learn", extra="demo", needed_for=f"the data set {source}")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / name


def bundled_rows(address: Address) -> ArrayRows | ColumnRows:
    """The examples of a bundled set or a part of it; "-mislabelled" has 5% random wrong labels."""
    name, _, part = address.scheme.partition("-")
    whole = _READERS[name](address.scheme)
    if not part:
        return whole
    is_test_N = ranks_in_groups(whole.labels_N) % _TEST_EVERY == _TEST_EVERY - 1
    rows_M = torch.nonzero(is_test_N if part == "test" else ~is_test_N).flatten().numpy()
    labels_M = whole.labels_N[rows_M]
    if part == "mislabelled":
        generator = derive_generator(0, "digits-mislabelled")
        num_wrong = round(_MISLABELLED_SHARE * len(labels_M))
        rows_W = torch.randperm(len(labels_M), generator=generator)[:num_wrong]
        further_W = torch.randint(1, _NUM_DIGITS, (num_wrong,), generator=generator)
        labels_M[rows_W] = (labels_M[rows_W] + further_W) % _NUM_DIGITS
    if isinstance(whole, ArrayRows):
        return replace(whole, labels_N=labels_M, images_NCHW=whole.images_NCHW[rows_M])
    tensors = {name: values_N[rows_M] for name, values_N in whole.tensors.items()}
    return replace(whole, labels_N=labels_M, tensors=tensors)


def _digits(source: str) -> ArrayRows:
    """1,797 handwritten digits as 1 x 8 x 8 images with brightness scaled to 0..255.

    Source: Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """
    file = _bundled_file("digits", "digits.csv.gz")
    stamp = Stamp.of([file])
    # A line has 64 brightness values and the label.
    lines_NL = np.loadtxt(file, delimiter=",")
    brightness_NCHW = lines_NL[:, :-1].reshape(-1, 1, 8, 8)
    images_NCHW = np.rint(brightness_NCHW * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    # The file is ordered by writer, so both parts have all writers.
    labels_N = torch.from_numpy(lines_NL[:, -1].astype(np.int64))
    return ArrayRows(source, tuple("0123456789"), labels_N, images_NCHW, stamp=stamp)


def _table(source: str) -> ColumnRows:
    """569 tumours by 30 measurements in two classes, or 178 wines by 13 in three.

    Source: Wolberg, Mangasarian, Street & Street 1995 and Forina et al. 1991, UCI.
    """
    name = source.partition("-")[0]
    file = _bundled_file(name, _TABLES[name])
    stamp = Stamp.of([file])
    with file.open(encoding="utf-8", newline="") as opened:
        # The first line has the row and column counts, and the class names.
        (_, num_columns, *names), *lines = csv.reader(opened)
    values_NL = np.array(lines, dtype=np.float64)
    labels_N = torch.from_numpy(values_NL[:, -1].astype(np.int64))
    numbers_ND = torch.from_numpy(values_NL[:, : int(num_columns)]).float()
    column = Column("", ColumnType.FLOAT32, (int(num_columns),), standardized=True)
    return ColumnRows(source, tuple(names), labels_N, (column,), {"": numbers_ND}, stamp=stamp)


def _pydocs(source: str) -> ColumnRows:
    """Distinct paragraphs, of at least 8 words, of the docstrings of eight standard packages.

    Another version of Python has others, and so another fingerprint.
    """
    files = {topic: _files(topic) for topic in _TOPICS}
    stamp = Stamp.of([file for of_topic in files.values() for file in of_topic])
    # For a paragraph in two packages, the later one counts.
    labelled = {
        text: label
        for label, of_topic in enumerate(files.values())
        for file in of_topic
        for text in _paragraphs(file)
    }
    tokenizer = hashing_tokenizer(_LENGTH, _VOCABULARY)
    columns, tensors = text_columns(
        "", [list(labelled)], tokenizer, num_texts=len(labelled), length=_LENGTH
    )
    labels_N = torch.tensor(list(labelled.values()), dtype=torch.int64)
    return ColumnRows(source, _TOPICS, labels_N, columns, tensors, stamp=stamp)


def _files(topic: str) -> list[Path]:
    place = Path(sysconfig.get_path("stdlib")) / _FILE_OF.get(topic, topic)
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise DataError(
            f"pydocs: there are no sources of {topic} in {place.parent}. Use a Python that comes "
            "with the sources of its standard library, or other data."
        )
    # Some distributions omit packages' tests.
    return [file for file in files if not {"test", "tests"} & set(file.relative_to(place).parts)]


def _paragraphs(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if len(re.findall(r"\w+", paragraph)) >= _FEWEST_WORDS:
                    yield " ".join(paragraph.split())


_READERS: Mapping[str, Callable[[str], ArrayRows | ColumnRows]] = MappingProxyType(
    {"digits": _digits, **dict.fromkeys(_TABLES, _table), "pydocs": _pydocs}
)
BUNDLED = (
    *("digits", "digits-train", "digits-test", "digits-mislabelled"),
    *(f"{name}{part}" for name in (*_TABLES, "pydocs") for part in ("", "-train", "-test")),
)


def cifar_rows(address: Address) -> ArrayRows:
    """CIFAR's images, 3 x 32 x 32, in file order; CIFAR-100's labels are the fine ones.

    `path` is `cifar-10-batches-py` or `cifar-100-python`, or its parent directory. torchvision's
    reader checks every file's digest before it unpickles it.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    from torchvision import datasets  # noqa: PLC0415 - slow to import, and not always needed

    source, path = address.source, Path(address.path)
    reader = datasets.CIFAR100 if source.startswith("cifar100") else datasets.CIFAR10
    root = path.parent if path.name == reader.base_folder else path
    stamp = Stamp.of(sorted((root / reader.base_folder).glob("*")))
    try:
        with warnings.catch_warnings():
            # The published pickles predate NumPy 2.4, which warns for each array.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            data = reader(root, train="-test:" not in source, download=False)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{source}: {root / reader.base_folder} is missing, or its files are not the "
            f"published ones ({error}). Download {reader.url} and unpack it in {root}."
        ) from error
    labels_N = torch.tensor(data.targets, dtype=torch.int64)
    images_NCHW = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return ArrayRows(source, tuple(data.classes), labels_N, images_NCHW, stamp=stamp)


def read_tensors(path: Path, remedy: str) -> Container:
    """Open a user's safetensors file, with texts in its metadata."""
    try:
        return read_container(
            path,
            max_bytes=_MAX_BYTES,
            max_tensors=_MAX_TENSORS,
            max_metadata_bytes=_MAX_METADATA_BYTES,
        )
    except (WeightsError, BlobTooLargeError) as error:
        # Its own remedy is about a model's weights.
        raise DataError(f"{error.problem}. {remedy}") from error


def features_rows(address: Address) -> ColumnRows:
    """A file's examples, as `stored`; standardized unless `?standardize=no` follows its name."""
    file = Path(address.path)
    standardized = address.one_of("standardize", ("yes", "no")) == "yes"
    stamp = Stamp.of([file])
    container = read_tensors(file, _HOW)
    if not {_EXAMPLES, _LABELS} <= container.specs.keys() <= _KNOWN:
        tensor_names = ", ".join(map(repr, sorted(container.specs))) or "nothing"
        raise DataError(f"{file} holds {tensor_names}. {_HOW}")
    names = _class_names(file, container)
    labels = _labels(file, container.tensor(_LABELS), names)
    examples = _floats(file, _EXAMPLES, container.tensor(_EXAMPLES), len(labels.labels_N))
    paired_NP = None
    if _PAIRED in container.specs:
        paired_NP = _floats(file, _PAIRED, container.tensor(_PAIRED), len(labels.labels_N))
        if paired_NP.ndim != 2 or not bool(paired_NP.isfinite().all()):
            raise DataError(
                f"{file}: {_PAIRED} has {paired_NP.ndim} dimensions, or values that are not "
                "finite. Give finite numbers, N x p."
            )
        paired_NP = scaled_features(paired_NP, feature_scale(paired_NP)).to(torch.float32)
    if not standardized:
        examples = examples.to(torch.float32)
    column = replace(standardized_column("", examples), standardized=standardized)
    return ColumnRows(
        *(address.source, labels.names, labels.labels_N, (column,), {"": examples}, paired_NP),
        stamp=stamp,
        targets=labels.targets,
    )


def _class_names(path: Path, container: Container) -> tuple[str, ...]:
    try:
        names: object = json.loads(container.metadata.get(CLASS_NAMES, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not is_texts(names):
        raise DataError(
            f"{path}: {CLASS_NAMES} in its metadata is not a JSON list of texts. Write "
            f"metadata={{'{CLASS_NAMES}': json.dumps(names)}}."
        )
    return tuple(names)


def _labels(path: Path, labels: Tensor, names: tuple[str, ...]) -> Labels:
    source = str(path)
    if labels.ndim == 2:
        binary = bool(((labels == 0) | (labels == 1)).all())
        if binary or not labels.is_floating_point():
            return labels_of_targets(label_values(labels, names or None, source), source)
        require_no_probabilities(labels, source)
        targets = number_values(labels, names or None, source)
        return Labels(targets.strata_N, None, targets)
    if labels.ndim != 1 or not len(labels):
        raise DataError(
            f"{path}: {_LABELS} is {labels.dtype} of the shape {list(labels.shape)}. Give a class "
            "number for each example, floats (regression), or N x C of 0 and 1 (multi-label)."
        )
    if labels.is_floating_point():
        targets = number_values(labels[:, None], None, source)
        return Labels(targets.strata_N, None, targets)
    return Labels(labels.to(torch.int64), names or None)


def _floats(path: Path, name: str, values: Tensor, num_examples: int) -> Tensor:
    shape = tuple(values.shape)
    if not 2 <= len(shape) <= MAX_DIMENSIONS + 1 or shape[0] != num_examples or 0 in shape:
        raise DataError(
            f"{path}: {name} has the shape {list(shape)}, but {_LABELS} has {num_examples} labels. "
            f"Give a row of numbers for each: [{num_examples}, d]."
        )
    return stored(values).contiguous()


@dataclass(frozen=True)
class DistilledFile:
    """The checked content of `synthetic.safetensors`."""

    images_NCHW: Tensor
    labels_N: Tensor
    stages_N: Tensor
    class_names: tuple[str, ...]
    manifest: dict[str, Any]


def read_distilled(folder: Path) -> DistilledFile:
    path = folder / FILE_NAME

    remedy = "Name a folder of 'lipt distill'."

    def refused(problem: object) -> DataError:
        return DataError(f"{path} is no distilled set: {problem}. {remedy}")

    container = read_tensors(path, remedy)
    try:
        names = json.loads(container.metadata[CLASS_NAMES])
        manifest = json.loads(container.metadata[MANIFEST])
        images, labels, stages = (container.tensor(name) for name in (IMAGES, LABELS, STAGES))
    except (KeyError, ValueError, RecursionError) as error:
        raise refused(f"it lacks a part, or its metadata is not JSON ({error})") from error
    if not is_texts(names) or not isinstance(manifest, dict):
        raise refused(f"{CLASS_NAMES} is not a list of texts, or {MANIFEST} not an object")
    size = len(images) if images.ndim == 4 and images.shape[1] in {1, 3} and images.numel() else 0
    fitting = images.dtype == torch.uint8 and labels.dtype == stages.dtype == torch.int64
    if not size or not fitting or not labels.shape == stages.shape == (size,):
        raise refused(
            f"{IMAGES} is {images.dtype} {list(images.shape)}, {LABELS} {labels.dtype} "
            f"{list(labels.shape)} and {STAGES} {stages.dtype} {list(stages.shape)}"
        )
    numbers = sorted(set(stages.tolist()))
    if numbers != list(range(len(numbers))):
        raise refused("its stages are not numbered from 0")
    require_labels(labels, len(names), str(path))
    return DistilledFile(images, labels, stages, tuple(names), manifest)


def distilled_rows(address: Address) -> ArrayRows:
    folder = Path(address.path)
    stamp = Stamp.of([folder / FILE_NAME])
    distilled = read_distilled(folder)
    images_NCHW = distilled.images_NCHW.numpy()
    return ArrayRows(
        address.source, distilled.class_names, distilled.labels_N, images_NCHW, stamp=stamp
    )
