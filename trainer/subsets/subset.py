"""Subset: which examples, with which weights, of which data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import SubsetError
from lipt.common.subsets import first_fall, subset_digest
from lipt.trainer.subsets import EXAMPLES_PER_SHARD
from lipt.trainer.subsets.data import (
    ExampleT_co,
    MapStyle,
    RowNumbers,
    Selectable,
    TableT_co,
    require_same_data,
    rows_of,
)
from lipt.trainer.subsets.formats import (
    Content,
    codec_of,
    decode,
    encode,
    encode_manifest,
    manifest_beside,
)
from lipt.trainer.writing.files import replacing, write_atomically

if TYPE_CHECKING:
    import torch.utils.data

    from lipt.common.data import Dataset
    from lipt.common.data.parallel import Progress
    from lipt.trainer.subsets.weighted import WeightedData

# What messages call a subset that lies in no file of its own.
_JSON = Path("subset.json")

# The fields that are texts of a file's metadata.
_TEXTS = ("fingerprint", "digest", "strategy")


@dataclass(frozen=True)
class Subset:
    """Chosen examples of one data set; a value that cannot differ from its digest.

    Attributes:
        indices: int64, ascending and distinct: row numbers in the data set.
        weights: float32, one per index: how much each counts in the loss.
        fingerprint: of the data set that the indices belong to.
        digest: SHA-256 of the indices as little-endian int64 followed by the
            weights as little-endian float32.
        strategy: the algorithm that chose them.
        manifest: how it came about: configuration, versions, seconds; `stopped_early` says
            why there are fewer examples than the budget, where there are.
        kept: whether this is the `previous` subset of the request, which still serves. Of
            the answer, not of the subset: it is neither compared nor written to a file.
        handed_over: whether the two arrays, int64 and float32, are given up by who made them,
            so that they are kept as they are; else copies are taken.

    Raises:
        SubsetError: the columns do not fit each other, or not the digest.
    """

    # Equal digests are equal columns.
    indices: NDArray[np.int64] = field(compare=False)
    weights: NDArray[np.float32] = field(compare=False)
    fingerprint: str
    digest: str
    strategy: str
    manifest: Mapping[str, Any] = field(default_factory=dict, hash=False)
    kept: bool = field(default=False, compare=False)
    handed_over: InitVar[bool] = False

    def __post_init__(self, handed_over: bool) -> None:
        for name, dtype in (("indices", np.int64), ("weights", np.float32)):
            take = np.asarray if handed_over else np.array
            column = take(getattr(self, name), dtype=dtype)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        _require_consistent(self.indices, self.weights)
        found = subset_digest(self.indices, self.weights)
        if found != self.digest:
            raise SubsetError(
                f"the subset's {len(self.indices)} examples have the digest {found}, but "
                f"{self.digest!r} was announced: they were changed or damaged on the way. "
                "Get the subset again with 'lipt subset get'."
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        (_, size), *others = self.facts
        told = "; ".join(f"{name}: {text}" for name, text in others)
        return f"<Subset of {size} examples; {told}>"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What a person wants to know of it at a glance, by name."""
        data, costs = self.manifest.get("data"), self.manifest.get("costs")
        num_examples = data.get("num_examples") if isinstance(data, Mapping) else None
        share = f" of {num_examples:,} ({len(self) / num_examples:.1%})" if num_examples else ""
        facts = [("examples", f"{len(self):,}{share}"), ("strategy", self.strategy)]
        if self.is_weighted:
            facts.append(("weights", f"{self.weights.min():.3g} to {self.weights.max():.3g}"))
        if isinstance(costs, Mapping):
            seconds = sum(value for name, value in costs.items() if name.endswith("_seconds"))
            facts.append(("took", f"{seconds:.1f} s"))
        facts.append(("digest", self.digest[:12]))
        if self.stopped_early:
            facts.append(("stopped early", self.stopped_early))
        return facts

    @property
    def stopped_early(self) -> str:
        """Why there are fewer examples than the budget, as a sentence; or empty."""
        return str(self.manifest.get("stopped_early") or "")

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Ids of images that the coordinator found broken and left out, ascending."""
        data = self.manifest.get("data")
        ids = data.get("quarantined") if isinstance(data, Mapping) else None
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            return ()
        return tuple(ids)

    @property
    def tags(self) -> dict[str, str]:
        """What an experiment tracker is told of it, so that it is found from what it trained.

        `mlflow.set_tags(subset.tags)`, `wandb.config.update(subset.tags)`, and so with any other.
        """
        tags = {
            "lipt.subset_digest": self.digest,
            "lipt.strategy": self.strategy,
            "lipt.num_examples": str(len(self)),
            "lipt.fingerprint": self.fingerprint,
        }
        for name in ("run_id", "run_name"):
            if told := self.manifest.get(name):
                tags[f"lipt.{name}"] = str(told)
        return tags

    def _repr_html_(self) -> str:
        from lipt.trainer.subsets.notebook import as_table  # noqa: PLC0415 - Pillow

        return as_table("Subset", self.facts)

    @property
    def is_weighted(self) -> bool:
        """Whether its examples are to count differently in the loss."""
        return bool(len(self)) and bool(self.weights.min() != self.weights.max())

    def dataset(self, data: Any, *, check: bool = True, normalized: bool = True) -> WeightedData:
        """The chosen examples with their weights: (image, label, weight).

        An example that is a dictionary gets its weight under "weight". `WeightedSubsetLoss`
        takes the weights, and `WeightedCollate` takes them through a collate of your own.

        Args:
            data: what the subset was chosen from, in any form that `lipt.select` takes.
            check: as in `apply`.
            normalized: weights of mean 1, so that the learning rate means what it means
                without them; else as the strategy gave them.

        Raises:
            SubsetError: as `apply`.
        """
        import torch  # noqa: PLC0415 - not before it is needed

        from lipt.trainer.subsets.weighted import WeightedData, normalized_weights  # noqa: PLC0415

        rows = rows_of(data)
        require_same_data(rows, self, check=check)
        weights_K = torch.from_numpy(self.weights.copy())
        weights_K = normalized_weights(weights_K) if normalized else weights_K
        return WeightedData(rows, RowNumbers(self.indices), weights_K, self.facts)

    def apply(
        self, dataset: MapStyle[ExampleT_co], *, check: bool = True
    ) -> torch.utils.data.Subset[ExampleT_co]:
        """The chosen examples of a data set, in the order of `indices`, without their weights.

        Warns where there are weights: `dataset` gives the examples with them.

        Args:
            dataset: the one that the subset was chosen from: of `lipt.common.data`, of
                torchvision, of Hugging Face, the user's own pairs of image and label, or the
                (X, y) that `lipt.select` was given.
            check: whether its fingerprint is compared with the subset's, which reads 64 rows
                of it, or all where it has no `targets` or the fingerprint is a full one. Its
                length always is.

        Raises:
            SubsetError: it is other data (both values are named), or its fingerprint cannot
                be computed.
        """
        from torch.utils.data import Subset as Chosen  # noqa: PLC0415 - not before it is needed

        # torch's own annotation asks for its Dataset, and uses no more than this.
        source: Any = rows_of(dataset)
        require_same_data(source, self, check=check)
        self._warn_of_weights()
        return Chosen(source, RowNumbers(self.indices))

    def hf_select(self, dataset: Selectable[TableT_co], *, check: bool = True) -> TableT_co:
        """The chosen rows of a Hugging Face `datasets.Dataset`, by its own `select`.

        Warns where there are weights, as `apply` does.

        Args:
            dataset: the one that the subset was chosen from.
            check: as in `apply`; the fingerprint is that of a coordinator on `parquet:PATH`
                with the same images and labels.

        Raises:
            SubsetError: as `apply`.
        """
        require_same_data(dataset, self, check=check)
        self._warn_of_weights()
        return dataset.select(self.indices.tolist())

    def _warn_of_weights(self) -> None:
        if self.is_weighted:
            from lipt.trainer.subsets.weighted import UnweightedWarning  # noqa: PLC0415

            warnings.warn(
                f"{self.strategy} gives weights to its examples, from {self.weights.min():.3g} to "
                f"{self.weights.max():.3g}, and they are left behind here. Take "
                "subset.dataset(data), which gives (image, label, weight), and WeightedSubsetLoss.",
                UnweightedWarning,
                stacklevel=3,
            )

    def save(self, path: str | Path) -> Path:
        """Write .npy, .csv, .json or .parquet, whole or not at all.

        `numpy.load` of a .npy gives the indices; `pandas.read_csv` and
        `read_parquet` give the columns index and weight. A NAME.csv has its manifest beside it,
        in NAME.manifest.json.

        Raises:
            SubsetError: the suffix is none of the four.
            MissingExtraError: .parquet without pyarrow.
            OSError: the directory is missing or cannot be written to.
        """
        target = Path(path)
        codec_of(target)  # before there is a file
        with replacing(target) as temporary:
            with temporary.open("wb") as file:
                encode(self._content(), target, file)
            if (beside := manifest_beside(target)) is not None:
                write_atomically(beside, encode_manifest(self._content()))
        return target

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, equal in every field.

        Raises:
            SubsetError: the suffix is none of the four, the file is damaged, or
                its examples differ from its digest.
            MissingExtraError: .parquet without pyarrow.
            OSError: the file cannot be read.
        """
        source = Path(path)
        codec_of(source)  # before it is read
        with source.open("rb") as file:
            return cls._decoded(file, source, _manifest_beside(source))

    def to_webdataset(
        self,
        dataset: Dataset,
        folder: str | Path,
        *,
        examples_per_shard: int = EXAMPLES_PER_SHARD,
        on_progress: Progress | None = None,
    ) -> list[Path]:
        """Write the chosen images themselves, as tar shards in WebDataset's convention.

        Image files stay byte for byte as they are at the source; pixels become PNG. The folder
        is there whole or not at all, with the subset in it as `subset.json`, and the names of
        the data's classes as `classes.txt`.

        Args:
            dataset: the one that the subset was chosen from, of `lipt.open_dataset`.
            folder: to be made; may be there as long as it is empty.
            examples_per_shard: how many go into one file, at most.
            on_progress: called with (examples done, examples in all).

        Returns:
            The shards, in order; `webdataset:FOLDER` opens them.

        Raises:
            SubsetError: it is other data, or the subset is empty.
            DataError: an image can no longer be read, or there are none.
            FileExistsError: there is something in the folder.
            OSError: it cannot be written.
        """
        from lipt.trainer.subsets.written_out import write_webdataset  # noqa: PLC0415 - Pillow

        return write_webdataset(self, dataset, Path(folder), examples_per_shard, on_progress)

    def to_parquet(
        self,
        dataset: Dataset,
        folder: str | Path,
        *,
        examples_per_shard: int = EXAMPLES_PER_SHARD,
        on_progress: Progress | None = None,
    ) -> list[Path]:
        """Write the chosen images themselves, as Parquet files in Hugging Face's convention.

        Columns: image, label, id (the row number) and weight. Else as `to_webdataset`;
        `parquet:FOLDER` and `datasets.load_dataset` open them.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        from lipt.trainer.subsets.written_out import write_parquet  # noqa: PLC0415 - Pillow

        return write_parquet(self, dataset, Path(folder), examples_per_shard, on_progress)

    def to_json(self) -> str:
        """The content of a .json file, to be kept inside of something else."""
        file = io.BytesIO()
        encode(self._content(), _JSON, file)
        return file.getvalue().decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` gave, equal in every field.

        Raises:
            SubsetError: it is damaged.
        """
        return cls._decoded(io.BytesIO(text.encode()), _JSON)

    def _content(self) -> Content:
        metadata = {name: getattr(self, name) for name in _TEXTS}
        metadata["manifest"] = dict(self.manifest)
        return Content(self.indices, self.weights, metadata)

    @classmethod
    def _decoded(cls, file: BinaryIO, source: Path, beside: bytes = b"") -> Self:
        content = decode(file, source, beside)
        texts: dict[str, Any] = {name: content.metadata.get(name) for name in _TEXTS}
        found = content.metadata.get("manifest")
        if not isinstance(found, dict) or not all(isinstance(t, str) for t in texts.values()):
            raise SubsetError(
                f"{source} lacks its fingerprint, digest, strategy or manifest. Get it again."
            )
        columns = content.indices_N, content.weights_N
        return cls(*columns, **texts, manifest=found, handed_over=True)


def _manifest_beside(source: Path) -> bytes:
    """What the file beside a .csv holds; nothing for a format that holds its own."""
    beside = manifest_beside(source)
    if beside is None:
        return b""
    try:
        return beside.read_bytes()
    except FileNotFoundError:
        raise SubsetError(
            f"{source} has no {beside.name} beside it, which says what it was chosen from. "
            "Copy both files, or get the subset again with 'lipt subset get'."
        ) from None


def _require_consistent(indices_N: NDArray[np.int64], weights_N: NDArray[np.float32]) -> None:
    if indices_N.ndim != 1 or indices_N.shape != weights_N.shape:
        raise SubsetError(
            f"a subset is two columns of one length; these have the shapes {indices_N.shape} "
            f"and {weights_N.shape}. Give one weight per index."
        )
    if len(indices_N) and (indices_N[0] < 0 or first_fall(indices_N) is not None):
        raise SubsetError(
            "a subset's indices are row numbers in ascending order, each once; these are not. "
            "Sort them with their weights and drop duplicates."
        )
    # Of these two, one is not finite where any is: no array of answers for each.
    if len(weights_N) and not np.isfinite([weights_N.min(), weights_N.max()]).all():
        raise SubsetError(
            "a subset's weights have to be finite; these are not. Give one number per index."
        )
