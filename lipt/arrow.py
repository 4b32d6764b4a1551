"""Scores and selection over Arrow record batches, for Ray Data, Dask, Spark and others.

`Scorer` computes errors, features and scores with theta_p; `select_from` selects from them. A
convolution's last bits can depend on its batch. Partitions that start at multiples of `batch_size`
give the same bits as a coordinator.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_seed
from lipt.common.errors import ConfigError, DataError, SignalsError
from lipt.common.requests import Budget
from lipt.common.subsets import subset_digest
from lipt.core.passes import Batches
from lipt.core.pretraining.evaluation import batch_size_for
from lipt.core.pretraining.sharding import split_validation
from lipt.core.selection.select import find_strategy, select
from lipt.core.selection.strategies.scores import error_norms, last_layer_norms
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.signals import STORAGE_LIMITS, Signals
from lipt.data.dataset import Dataset, input_format
from lipt.data.inputs.specs import ImageFormat, ImageSpec
from lipt.data.sources.rows import EncodedRows
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import load_model
from lipt.trainer.subsets.subset import Subset

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Scorer:
    """Model, weights file and settings of a scoring pass over images on a CPU; picklable."""

    model: str
    weights: Path
    inputs: ImageFormat
    class_names: tuple[str, ...]
    seed: int = 0
    threads: int = 1
    allow_modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, dataset: Dataset, weights: str | Path, **options: Any) -> Self:
        """Make the scorer of a run's theta_p.

        Args:
            config: the run's configuration, `client.run().config`.
            dataset: the run's data: images with one class each, or else ConfigError.
            weights: theta_p, as written by `client.save_weights`.
            options: threads and allow_modules.
        """
        if dataset.target.kind is not TargetKind.CLASS or not isinstance(dataset.inputs, ImageSpec):
            raise ConfigError(
                f"{dataset.source} has {dataset.inputs} with {dataset.target.kind.words} targets; "
                "lipt.arrow scores images with one class each. Let a coordinator score it."
            )
        seed = config.seed
        train_ids = split_validation(dataset.labels_N, config.validation, seed=seed).train_ids
        inputs = input_format(dataset, train_ids, derive_seed(seed, "normalization"))
        if not isinstance(inputs, ImageFormat):
            raise TypeError(f"images have the format {inputs}")
        options = {"threads": config.evaluation_threads} | options
        path = Path(weights).absolute()
        return cls(config.model, path, inputs, dataset.class_names, seed, **options)

    @property
    def batch_size(self) -> int:
        """Examples per forward pass, as on a coordinator's CPU."""
        return batch_size_for(ImageSpec(*self.inputs.shape), _CPU)

    def scores(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Score record batches of examples, as in Spark's `mapInArrow`.

        Args:
            batches: integer columns id and label, and image: an image file's bytes, alone or as
                Hugging Face's struct.

        Yields:
            id, label, errors and features (lists), and the scores el2n and grand, float32.

        Raises:
            DataError: a column is missing or of another type, or an image is broken.
            SignalsError: the outputs are not finite.
            WeightsError: the file holds another model's weights.
        """
        model = load_model(
            self.model,
            self.weights,
            num_classes=len(self.class_names),
            inputs=ImageSpec(*self.inputs.shape),
            device=_CPU,
            seed=derive_seed(self.seed, "model"),
            allowed_modules=self.allow_modules,
            max_bytes=self.weights.stat().st_size,
        )
        for batch in _of_size(batches, self.batch_size):
            yield self._scored(model, batch)

    def _scored(self, model: nn.Module, batch: Any) -> Any:
        ids_B, labels_B = _whole_numbers(batch, "id"), _whole_numbers(batch, "label")
        dataset = Dataset(self._rows(batch, ids_B, labels_B), "", ImageSpec(*self.inputs.shape))
        examples = Batches(dataset, self.inputs, _CPU, self.batch_size)
        try:
            with computation(self.threads):
                signals = compute_signals(model, examples)
        except SignalsError as error:
            raise SignalsError(
                f"in the batch of {len(ids_B)} examples that begins with id {int(ids_B[0])}, "
                f"counted from there: {error}"
            ) from error
        columns = {
            "id": ids_B.numpy(),
            "label": labels_B.numpy(),
            "errors": _lists_of(signals.errors_NC),
            "features": _lists_of(signals.features_ND),
            "el2n": error_norms(signals).numpy(),
            "grand": last_layer_norms(signals).numpy(),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _rows(self, batch: Any, ids_B: Tensor, labels_B: Tensor) -> EncodedRows:
        if bool(((labels_B < 0) | (labels_B >= len(self.class_names))).any()):
            raise DataError(f"a label is no number of the {len(self.class_names)} classes.")
        column = _column_of(batch, "image")
        files = column.field("bytes") if pa.types.is_struct(column.type) else column
        if not (pa.types.is_binary(files.type) or pa.types.is_large_binary(files.type)):
            raise DataError(f"the column 'image' is {column.type}. Give image files' bytes.")
        return EncodedRows(
            "the record batch",
            self.class_names,
            labels_B,
            open=lambda row: io.BytesIO(files[row].as_py()),
            where=lambda row: f"id {int(ids_B[row])}",
        )


def _of_size(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield the same rows in order, `size` at a time; the last batch may be smaller."""
    waiting, held = [], 0
    for batch in batches:
        start = 0
        while start < len(batch):
            part = batch.slice(start, size - held)
            waiting.append(part)
            start, held = start + len(part), held + len(part)
            if held == size:
                yield pa.Table.from_batches(waiting)
                waiting, held = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def select_from(
    table: Any,
    strategy: str,
    fraction: float | None = None,
    seed: int = 0,
    *,
    budget: int | None = None,
    balanced: bool | None = None,
    options: Mapping[str, str] | None = None,
    has_bias: bool = True,
    threads: int = 1,
    fingerprint: str = "",
) -> Subset:
    """Select the subset that a coordinator selects with theta_p (proxy `soup`).

    Args:
        table: scores of every example as one Arrow table, rows in any order.
        strategy: one that needs only errors, features and labels.
        fraction: share of the examples, in (0, 1]; give this or `budget`.
        seed: the run's seed.
        budget: number of examples.
        balanced: equal shares per class; None for the strategy's default.
        options: the strategy's options, as text.
        has_bias: whether the model's last layer has a bias.
        threads: the run's `evaluation_threads`.
        fingerprint: the data's fingerprint, which `Subset.apply` compares.

    Raises:
        DataError: ids are not 0..N-1, each once, or a column is missing.
        BudgetError, StrategyOptionError, UnknownNameError: as `Client.subset`.
        SignalsError: the strategy needs learners, a validation split or other inputs.
    """
    chosen_by = find_strategy(strategy)
    signals = _signals(table, has_bias=has_bias)
    budget = Budget(fraction, budget).of(len(signals))
    with computation(threads):
        chosen = select(
            chosen_by,
            signals,
            budget,
            balanced=chosen_by.resolve_balance(balanced),
            seed=derive_seed(seed, "selection"),
            options=options,
        )
    indices, weights = chosen.indices_K.numpy(), chosen.weights_K.numpy()
    manifest = {"data": {"num_examples": len(signals)}, "stopped_early": chosen.stopped_early}
    digest = subset_digest(indices, weights)
    return Subset(indices, weights, fingerprint, digest, strategy, manifest)


def _signals(table: Any, *, has_bias: bool) -> Signals:
    ids_N = _whole_numbers(table, "id")
    order_N = ids_N.argsort()
    if not len(ids_N) or not torch.equal(ids_N[order_N], torch.arange(len(ids_N))):
        raise DataError(
            f"the ids of the table's {len(ids_N)} rows are not 0..{len(ids_N) - 1}, each once. "
            "Give the scores of all examples, by their row numbers in the data."
        )
    errors_NC, features_ND = _matrix_of(table, "errors"), _matrix_of(table, "features")
    # A coordinator stores signals of this size in the same dtypes.
    return Signals(
        errors_NC[order_N].to(STORAGE_LIMITS.error_dtype(errors_NC.numel())),
        features_ND[order_N].to(STORAGE_LIMITS.feature_dtype(features_ND.numel())),
        _whole_numbers(table, "label")[order_N],
        has_bias=has_bias,
    )


def _column_of(batch: Any, name: str) -> Any:
    if name not in batch.schema.names:
        there = ", ".join(batch.schema.names)
        raise DataError(f"the batch has the columns {there}, and no {name!r}. Rename a column.")
    column = batch.column(name)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if column.null_count:
        raise DataError(f"{column.null_count} values of {name!r} are null. Leave out their rows.")
    return column


def _whole_numbers(batch: Any, name: str) -> Tensor:
    """A column of integers; N int64."""
    column = _column_of(batch, name)
    if not pa.types.is_integer(column.type):
        raise DataError(f"the column {name!r} is {column.type}. Make it one of whole numbers.")
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype("int64"))


def _matrix_of(batch: Any, name: str) -> Tensor:
    """A column of lists of one length; N x D, of the lists' own type."""
    column, types = _column_of(batch, name), pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    is_list = any(is_kind(column.type) for is_kind in lists)
    if not is_list or not types.is_primitive(column.type.value_type):
        raise DataError(f"the column {name!r} is {column.type}. Make it lists of numbers.")
    flat, num_rows = column.flatten(), len(column)
    width = len(flat) // max(1, num_rows)
    lengths = pc.call_function("list_value_length", [column]).to_numpy(zero_copy_only=False)
    if flat.null_count or bool((lengths != width).any()):
        raise DataError(f"the lists of {name!r} differ in length, or hold nulls. Make them whole.")
    return torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy()).view(num_rows, width)


def _lists_of(matrix_ND: Tensor) -> Any:
    num_rows, width = matrix_ND.shape
    # Spark has no lists of a fixed size.
    offsets = torch.arange(num_rows + 1, dtype=torch.int32) * width
    return pa.ListArray.from_arrays(offsets.numpy(), pa.array(matrix_ND.reshape(-1).numpy()))
