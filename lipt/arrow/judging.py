"""Judging: theta_p's view of the examples in record batches, as a coordinator computes it.

A judge is a value: it can be sent to other processes, which read the weights where they are.
A convolution's last digits can depend on which examples share a batch: partitions that begin at
multiples of `batch_size` in the data's order give the coordinator's own bits.

Shapes: B examples of a batch.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from lipt.arrow.columns import column_of, is_list, lists_of, matrix_of, pyarrow, whole_numbers
from lipt.common.config.run_config import RunConfig
from lipt.common.data import Dataset, input_format
from lipt.common.data.sources.encoded import EncodedRows
from lipt.common.data.sources.rows import ArrayRows, ImageRows
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_seed
from lipt.common.errors import ConfigError, DataError, SignalsError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.loading import load_model
from lipt.common.signals.batches import Batches
from lipt.common.targets.kinds import TargetKind
from lipt.core.evaluation import batch_size_for
from lipt.core.selection.strategies.el2n import error_norms
from lipt.core.selection.strategies.grand import last_layer_norms
from lipt.core.sharding import split_validation
from lipt.core.signals.compute import compute_signals

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Judge:
    """What a model's pass over images needs, on a CPU.

    Attributes:
        model: its name.
        weights: the safetensors file of its weights, where every process finds it.
        inputs: what it is given of an image.
        class_names: of all classes.
        seed: of the run.
        threads: that a pass takes.
        precision: what errors and features are given in.
        allow_modules: that the model's name may import.
    """

    model: str
    weights: Path
    inputs: ImageFormat
    class_names: tuple[str, ...]
    seed: int = 0
    threads: int = 1
    precision: Literal["float32", "float16"] = "float32"
    allow_modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, dataset: Dataset, weights: str | Path, **others: Any) -> Self:
        """The judge that a run has.

        Args:
            config: the run's, as `client.run().config` has it.
            dataset: the run's data, of images with one class each.
            weights: theta_p, as `client.save_weights` writes it.
            others: threads, precision and allow_modules.

        Raises:
            ConfigError: the data is of another kind.
        """
        if dataset.target.kind is not TargetKind.CLASS or not isinstance(dataset.inputs, ImageSpec):
            raise ConfigError(
                f"{dataset.source} has {dataset.inputs} with {dataset.target.kind.words} targets; "
                "lipt.arrow judges images with one class each. Let a coordinator judge it."
            )
        train_ids = split_validation(
            dataset.labels_N, config.validation, seed=config.seed
        ).train_ids
        inputs = input_format(dataset, train_ids, derive_seed(config.seed, "normalization"))
        if not isinstance(inputs, ImageFormat):
            raise TypeError(f"images have the format {inputs}")
        names = dataset.class_names
        others = {"threads": config.evaluation_threads} | others
        return cls(config.model, Path(weights).absolute(), inputs, names, config.seed, **others)

    @property
    def batch_size(self) -> int:
        """Examples of a forward pass, as a coordinator has it on a CPU."""
        return batch_size_for(ImageSpec(*self.inputs.shape), _CPU)

    def scores(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Record batches of scores for record batches of examples: what `mapInArrow` wants.

        Args:
            batches: with the columns id and label, whole numbers, and image: an image file's
                bytes, alone or as Hugging Face's struct, or a list of its C x H x W uint8 pixels.

        Yields:
            id, label, errors and features (lists), and the scores el2n and grand, float32.

        Raises:
            DataError: a column is missing or of another type, or an image broken.
            SignalsError: the outputs are not finite.
            WeightsError: the file holds another model's weights.
        """
        model = self._model()
        for batch in _of_size(batches, self.batch_size):
            yield self._scored(model, batch)

    def _model(self) -> nn.Module:
        return load_model(
            self.model,
            self.weights,
            num_classes=len(self.class_names),
            inputs=ImageSpec(*self.inputs.shape),
            device=_CPU,
            seed=derive_seed(self.seed, "model"),
            allowed_modules=self.allow_modules,
            max_bytes=self.weights.stat().st_size,
        )

    def _scored(self, model: nn.Module, batch: Any) -> Any:
        ids_B, labels_B = whole_numbers(batch, "id"), whole_numbers(batch, "label")
        dataset = Dataset(self._rows(batch, ids_B, labels_B), "", ImageSpec(*self.inputs.shape))
        examples = Batches(dataset, self.inputs, _CPU, self.batch_size, lambda *_: None)
        try:
            with pinned_kernels(self.threads):
                signals = compute_signals(model, examples)
        except SignalsError as error:
            raise SignalsError(
                f"in the batch of {len(ids_B)} examples that begins with id {int(ids_B[0])}, "
                f"counted from there: {error}"
            ) from error
        kept = torch.float16 if self.precision == "float16" else torch.float32
        columns = {
            "id": ids_B.numpy(),
            "label": labels_B.numpy(),
            "errors": lists_of(signals.errors_NC.to(kept)),
            "features": lists_of(signals.features_ND.to(kept)),
            "el2n": error_norms(signals).numpy(),
            "grand": last_layer_norms(signals).numpy(),
        }
        return pyarrow().RecordBatch.from_pydict(columns)

    def _rows(self, batch: Any, ids_B: Tensor, labels_B: Tensor) -> ImageRows:
        source, column = "the record batch", column_of(batch, "image")
        if bool(((labels_B < 0) | (labels_B >= len(self.class_names))).any()):
            raise DataError(f"a label is no number of the {len(self.class_names)} classes.")
        if is_list(column.type):
            pixels_BX = matrix_of(batch, "image")
            channels, height, width = self.inputs.shape
            if pixels_BX.dtype != torch.uint8 or pixels_BX.shape[1] != channels * height * width:
                raise DataError(
                    f"an image is {pixels_BX.shape[1]} values of {column.type}. Give "
                    f"{channels} x {height} x {width} of uint8, or an image file's bytes."
                )
            images = pixels_BX.view(-1, channels, height, width).numpy()
            return ArrayRows(source, self.class_names, labels_B, images)
        types = pyarrow().types
        files = column.field("bytes") if types.is_struct(column.type) else column
        if not (types.is_binary(files.type) or types.is_large_binary(files.type)):
            raise DataError(f"the column 'image' is {column.type}. Give image files' bytes.")
        return EncodedRows(
            source,
            self.class_names,
            labels_B,
            open=lambda row: io.BytesIO(files[row].as_py()),
            where=lambda row: f"id {int(ids_B[row])}",
        )


def _of_size(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """The same rows in the same order, `size` at a time; the last ones may be fewer."""
    pa, waiting, held = pyarrow(), [], 0
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
