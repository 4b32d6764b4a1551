"""Subset: selected examples of a data set, with their weights; its files, readable without lipt.

The suffix selects the format. Every format has N indices (int64, ascending), N weights (float32),
and optional N x C soft labels (float16). All but .csv have a metadata object {"format":
"lipt-subset", "version": 1, "strategy", "fingerprint", "digest", "manifest"}.

.npy      consecutive npy records, as `numpy.save` on an open file writes them: `<i8` N, `<f4` N,
          `|u1` with the metadata as UTF-8 JSON, and `<f2` N x C. `numpy.load` reads the indices.
.json     the metadata object, with the keys "indices", "weights" and "soft_labels".
.csv      an export for other programs, without metadata, so not read back: header
          `index,weight,soft_0,...`, one row per example.

In text, a number is the shortest decimal of its float64 value, which reads back exactly.
"""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import InvalidRequestError, SubsetError
from lipt.common.nested import parse_json
from lipt.common.subsets import subset_digest
from lipt.trainer.arguments import checked
from lipt.trainer.files import codec_of, replacing
from lipt.trainer.formatting import as_table

if TYPE_CHECKING:
    import torch.utils.data

    from lipt.data.parallel import Progress
    from lipt.trainer.subsets.data import ExampleT_co, MapStyle, WeightedData

# The name in messages of a subset without a file.
_JSON = Path("subset.json")

_FORMAT = {"format": "lipt-subset", "version": 1}
_COLUMNS = {"indices": np.int64, "weights": np.float32, "soft_labels": np.float16}
_TEXTS = ("fingerprint", "digest", "strategy")
# The records of a .npy: their types and dimensions.
_RECORDS = (
    ("indices", "<i8", 1),
    ("weights", "<f4", 1),
    ("metadata", "|u1", 1),
    ("soft_labels", "<f2", 2),
)
# Rows converted to Python numbers at a time.
_ROWS = 16_384


@dataclass(frozen=True)
class Subset:
    """Selected examples of one data set, checked against their digest.

    Attributes:
        indices: int64, ascending and distinct: row numbers in the data set.
        weights: float32, one loss weight per index.
        fingerprint: fingerprint of the data set.
        digest: SHA-256 of the little-endian columns: indices int64, weights float32, then soft
            labels float16.
        strategy: name of the selection strategy.
        manifest: provenance: configuration, versions, seconds.
        soft_labels: float16, one row of probabilities per index, as training targets; None where
            none were requested.
        kept: whether the request's `previous` subset was returned; neither compared nor saved.
        no_copy: whether to keep the arrays without a copy.

    Raises:
        SubsetError: the columns do not fit each other, or not the digest.
    """

    # Equal digests imply equal columns.
    indices: NDArray[np.int64] = field(compare=False)
    weights: NDArray[np.float32] = field(compare=False)
    fingerprint: str
    digest: str
    strategy: str
    manifest: Mapping[str, Any] = field(default_factory=dict, hash=False)
    soft_labels: NDArray[np.float16] | None = field(default=None, compare=False)
    kept: bool = field(default=False, compare=False)
    no_copy: InitVar[bool] = False

    def __post_init__(self, no_copy: bool) -> None:
        take = np.asarray if no_copy else np.array
        for name, dtype in _COLUMNS.items():
            if getattr(self, name) is not None:
                column = take(getattr(self, name), dtype=dtype)
                column.setflags(write=False)
                object.__setattr__(self, name, column)
        try:
            own_digest = subset_digest(self.indices, self.weights, self.soft_labels)
        except InvalidRequestError as error:
            raise SubsetError(str(error)) from None
        _require_valid(self)
        if own_digest != self.digest:
            raise SubsetError(
                f"the subset's {len(self.indices)} examples have the digest {own_digest}, but "
                f"{self.digest!r} was announced: they were changed or damaged on the way. "
                "Get the subset again with 'lipt subset get'."
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        (_, size), *further = self.facts
        details = "; ".join(f"{name}: {text}" for name, text in further)
        return f"<Subset of {size} examples; {details}>"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Summary as (name, text) pairs."""
        num_examples = self.recorded("data", "num_examples")
        costs = self.manifest.get("costs")
        share = f" of {num_examples:,} ({len(self) / num_examples:.1%})" if num_examples else ""
        facts = [("examples", f"{len(self):,}{share}"), ("strategy", self.strategy)]
        if self.findings:
            facts.append(("findings", "; ".join(self.findings[:3])))
        if self.is_weighted:
            facts.append(("weights", f"{self.weights.min():.3g} to {self.weights.max():.3g}"))
        if self.soft_labels is not None:
            facts.append(("soft labels", f"recommended alpha {self.recommended_alpha:.2g}"))
        if isinstance(costs, Mapping):
            seconds = sum(value for name, value in costs.items() if name.endswith("_seconds"))
            facts.append(("took", f"{seconds:.1f} s"))
        facts.append(("digest", self.digest[:12]))
        if self.stopped_early:
            facts.append(("stopped early", self.stopped_early))
        return facts

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on the selection, such as the proxy model and the number of learners."""
        words = self.recorded("findings", "words")
        return tuple(map(str, words)) if isinstance(words, list) else ()

    @property
    def recommended_alpha(self) -> float:
        """Recommended share of the soft label in a training target, in [0, 1]."""
        alpha = self.recorded("soft_labels", "recommended_alpha")
        return float(alpha) if isinstance(alpha, int | float) and 0 <= alpha <= 1 else 0.0

    @property
    def stopped_early(self) -> str:
        """Reason for fewer examples than the budget; empty otherwise."""
        return str(self.manifest.get("stopped_early") or "")

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Ids of broken images that the coordinator excluded, ascending."""
        ids = self.recorded("data", "quarantined")
        numbers = isinstance(ids, list) and all(isinstance(number, int) for number in ids)
        return tuple(ids) if numbers else ()

    def recorded(self, section: str, name: str) -> Any:
        """Return a value of a section of the manifest; None without it."""
        values = self.manifest.get(section)
        return values.get(name) if isinstance(values, Mapping) else None

    @property
    def tags(self) -> dict[str, str]:
        """Tags for an experiment tracker, as in `mlflow.set_tags(subset.tags)`."""
        tags = {
            "lipt.subset_digest": self.digest,
            "lipt.strategy": self.strategy,
            "lipt.num_examples": str(len(self)),
            "lipt.fingerprint": self.fingerprint,
        }
        for name in ("run_id", "run_name"):
            if value := self.manifest.get(name):
                tags[f"lipt.{name}"] = str(value)
        return tags

    def _repr_html_(self) -> str:
        return as_table("Subset", self.facts)

    @property
    def is_weighted(self) -> bool:
        """Whether its examples have different loss weights."""
        return bool(len(self)) and bool(self.weights.min() != self.weights.max())

    @checked
    def dataset(self, data: Any, *, check: bool = True) -> WeightedData:
        """Return the selected examples with their weights, of mean 1: (image, label, weight).

        Soft labels, if any, come last: (image, label, weight, soft label). A dictionary example
        gets them under "weight" and "soft_label". `WeightedSubsetLoss` and `SoftTargetLoss` take
        them; `WeightedCollate` wraps your own collate function.

        Args:
            data: the data that the subset was selected from, in any form that `lipt.select` takes.
            check: as in `apply`; raises the same errors.
        """
        from lipt.trainer.subsets.data import WeightedData, rows_for  # noqa: PLC0415 - torch

        return WeightedData(rows_for(self, data, check=check), self)

    @checked
    def apply(
        self, dataset: MapStyle[ExampleT_co], *, check: bool = True
    ) -> torch.utils.data.Subset[ExampleT_co]:
        """Return the selected examples in the order of `indices`, without their weights.

        Warns where there are weights; `dataset` returns them.

        Args:
            dataset: the one that the subset was selected from: of `lipt.data`, torchvision
                or Hugging Face, pairs of image and label, (X, y), or a table, whose rows come as
                dictionaries of tensors.
            check: whether to compare fingerprints, besides lengths. It reads 64 rows, or all for a
                full fingerprint or for data without `targets`.

        Raises:
            SubsetError: other data, or the fingerprint cannot be computed.
        """
        from torch.utils.data import Subset as Chosen  # noqa: PLC0415 - slow

        from lipt.trainer.subsets.data import row_numbers, rows_for  # noqa: PLC0415

        source = rows_for(self, dataset, check=check)
        self._warn_of_weights()
        return Chosen(source, row_numbers(self.indices))

    @checked
    def hf_select(self, dataset: Any, *, check: bool = True) -> Any:
        """Return the selected rows of a Hugging Face `datasets.Dataset`, by its own `select`.

        Its fingerprint is that of `parquet:PATH` with the same images and labels; else as `apply`.
        """
        from lipt.trainer.subsets.data import require_same_data  # noqa: PLC0415 - slow

        require_same_data(dataset, self, check=check)
        self._warn_of_weights()
        return dataset.select(self.indices.tolist())

    def _warn_of_weights(self) -> None:
        if self.is_weighted:
            from lipt.trainer.subsets.data import UnweightedWarning  # noqa: PLC0415

            warnings.warn(
                f"{self.strategy} gives weights to its examples, from {self.weights.min():.3g} to "
                f"{self.weights.max():.3g}, which are lost here. Take subset.dataset(data) and "
                "WeightedSubsetLoss.",
                UnweightedWarning,
                stacklevel=4,
            )

    @checked
    def save(self, path: str | Path) -> Path:
        """Write .npy, .json or .csv atomically; SubsetError for another suffix.

        `numpy.load` of a .npy returns the indices. A .csv is an export for other programs: the
        columns index and weight, without the manifest. `load` reads the other two.
        """
        target = Path(path)
        write = writer_of(target)  # checked before there is a file
        with replacing(target) as temporary, temporary.open("wb") as file:
            write(self, file)
        return target

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """Read a .npy or .json, equal in every field; SubsetError for a damaged file."""
        source = Path(path)
        codec_of(source, _READERS, "a subset is read")  # checked before the file is opened
        with source.open("rb") as file:
            return cls(**_decoded(file, source), no_copy=True)

    @checked
    def to_jsonl(self, data: Any, path: str | Path, *, check: bool = True) -> Path:
        """Write the chosen rows, with all their columns, as JSON lines for other trainers.

            subset.to_jsonl("jsonl:pool.jsonl?prompt=question&completion=answer", "chosen.jsonl")

        Rows come in the order of `indices`. Lines of JSON stay as they are, and cells of CSV stay
        texts. Where weights differ, a row has its own as `weight`; soft labels are `soft_label`.

        Args:
            data: the table that the subset was chosen from: its file by name, a data frame, a list
                of dictionaries, or a Hugging Face data set; of a mixture, the same for each source
                by name.
            path: a file to write, atomically.
            check: as in `apply`; of several sources, only names and lengths are compared.

        Raises:
            SubsetError: other data.
            DataError: no named columns, a column of one of these names, an image, or `path` is a
                file of the data.
        """
        from lipt.trainer.subsets.data import json_lines  # noqa: PLC0415 - torch

        lines = json_lines(self, data, Path(path), check=check)
        with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        return Path(path)

    def to_json(self) -> str:
        """Return the content of a .json file."""
        file = io.BytesIO()
        _encode_json(self, file)
        return file.getvalue().decode()

    @classmethod
    @checked
    def from_json(cls, text: str) -> Self:
        """Read the output of `to_json`."""
        return cls(**_decoded(io.BytesIO(text.encode()), _JSON), no_copy=True)

    @checked
    def to_webdataset(
        self,
        dataset: Any,
        folder: str | Path,
        *,
        on_progress: Progress | None = None,
    ) -> list[Path]:
        """Write the selected images as tar shards in WebDataset's convention, atomically.

        Image files are copied byte for byte; pixels become PNG. `subset.json` and `classes.txt` lie
        beside the shards, and `webdataset:FOLDER` opens them. Returns the shards in order.

        Args:
            dataset: the one that the subset was selected from, as `lipt.open_dataset` takes it.
            folder: a new or empty one, else FileExistsError.
            on_progress: called with (examples done, examples in all).

        Raises:
            SubsetError, DataError: other data, an empty subset, or data without readable images.
        """
        from lipt.trainer.subsets.data import export_shards  # noqa: PLC0415 - Pillow

        return export_shards(self, dataset, Path(folder), on_progress)


def _require_valid(subset: Subset) -> None:
    weights_N, soft_labels_NC = subset.weights, subset.soft_labels
    # A NaN or infinity shows in the minimum or maximum, which need no temporary array.
    finite = np.isfinite([weights_N.min(initial=0), weights_N.max(initial=0)]).all()
    if not finite or subset.indices.min(initial=0) < 0:
        raise SubsetError(
            "a subset has row numbers from 0 and finite weights; these are not. Get it again."
        )
    if soft_labels_NC is not None and not (
        soft_labels_NC.min(initial=0) >= 0 and soft_labels_NC.max(initial=0) <= 1
    ):
        raise SubsetError("soft labels are probabilities in [0, 1]; these are not. Get them again.")


def writer_of(path: Path) -> Callable[[Subset, BinaryIO], None]:
    """Return the function that writes a format; SubsetError for another suffix."""
    return codec_of(path, _WRITERS, "a subset is written")


def _metadata(subset: Subset) -> dict[str, Any]:
    return _FORMAT | {name: getattr(subset, name) for name in (*_TEXTS, "manifest")}


def _decoded(file: BinaryIO, path: Path) -> dict[str, Any]:
    read = codec_of(path, _READERS, "a subset is read")
    try:
        fields = read(file)
        columns = {
            name: np.asarray(fields[name], dtype=dtype)
            for name, dtype in _COLUMNS.items()
            if name != "soft_labels" or name in fields
        }
    # numpy and json raise any error for damaged bytes, MemoryError included.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SubsetError(
            f"{path} does not hold a subset ({reason}). It is damaged, or not written "
            "by Subset.save: get it again with 'lipt subset get'."
        ) from error
    stated = fields.pop("format", None), fields.pop("version", None)
    if stated != tuple(_FORMAT.values()):
        raise SubsetError(
            f"{path} is of format {stated[0]!r} version {stated[1]!r}; this version of lipt reads "
            "'lipt-subset' version 1. Update lipt, or get the subset again."
        )
    texts = all(isinstance(fields.get(name), str) for name in _TEXTS)
    if not texts or not isinstance(fields.get("manifest"), dict):
        raise SubsetError(
            f"{path} lacks its fingerprint, digest, strategy or manifest. Get it again."
        )
    return columns | {name: fields[name] for name in (*_TEXTS, "manifest")}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _encode_npy(subset: Subset, file: BinaryIO) -> None:
    metadata = np.frombuffer(_json(_metadata(subset)).encode(), dtype=np.uint8)
    records = {**vars(subset), "metadata": metadata}
    for name, dtype, _ in _RECORDS:
        if records[name] is not None:
            record = records[name].astype(dtype, copy=False)
            np.lib.format.write_array(file, record, version=(1, 0), allow_pickle=False)


def _decode_npy(file: BinaryIO) -> dict[str, Any]:
    records: dict[str, Any] = {}
    for name, dtype, ndim in _RECORDS:
        ahead = file.read(1)
        file.seek(-len(ahead), os.SEEK_CUR)
        if not ahead and name == "soft_labels":
            break
        if not ahead:
            raise ValueError(f"there are no {name}")
        record = np.lib.format.read_array(file, allow_pickle=False)
        if record.dtype.str != dtype or record.ndim != ndim:
            raise ValueError(f"{name} are {record.dtype.str} of {record.ndim} dimensions")
        records[name] = record
    metadata: dict[str, Any] = parse_json(records.pop("metadata").tobytes())
    return records | metadata


def _encode_csv(subset: Subset, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns: list[NDArray[Any]] = [subset.indices, subset.weights]
    if subset.soft_labels is not None:
        columns += list(subset.soft_labels.T)
    writer.writerow(["index", "weight"] + [f"soft_{number}" for number in range(len(columns) - 2)])
    for start in range(0, len(columns[0]), _ROWS):
        some = slice(start, start + _ROWS)
        writer.writerows(zip(*(column[some].tolist() for column in columns), strict=True))
    text.detach()


def _encode_json(subset: Subset, file: BinaryIO) -> None:
    columns = {name: getattr(subset, name) for name in _COLUMNS}
    lists = {name: column.tolist() for name, column in columns.items() if column is not None}
    file.write(f"{_json(_metadata(subset) | lists)}\n".encode())


def _decode_json(file: BinaryIO) -> dict[str, Any]:
    return dict(parse_json(file.read()))


_WRITERS = {".npy": _encode_npy, ".json": _encode_json, ".csv": _encode_csv}
_READERS = {".npy": _decode_npy, ".json": _decode_json}
