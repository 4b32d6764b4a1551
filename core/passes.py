"""Passes over the data: errors and features of batches, for all examples or a range.

Errors are of each example's OWN loss: a batch mean would overweight a smaller last batch. Results
do not depend on ranges if each begins with a batch.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import SignalsError
from lipt.common.tensor_files import TensorSpec, Weights, non_finite
from lipt.common.text import listed
from lipt.core.tasks import ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored, pinned, stored_on, to_model_input
from lipt.data.inputs.specs import InputFormat, Inputs
from lipt.data.parallel import prefetched
from lipt.models.encodings import encode_weights, open_weights
from lipt.models.head import evaluation_mode, find_head, forward_with_features

BLOCK_BYTES = 64 * 1024**2
# With more narrow rows at a time, what is computed from them leaves a CPU's cache.
CACHED_ROWS = 4096


def row_blocks(
    num_rows: int, row_bytes: int, block_bytes: int = BLOCK_BYTES, most_rows: int | None = None
) -> Iterator[slice]:
    """Consecutive slices of all rows, each of at most `block_bytes` and at least one row."""
    size = max(1, block_bytes // max(1, row_bytes))
    if most_rows is not None:
        size = min(size, most_rows)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


OnProgress = Callable[[int, int], None]
# Called after every batch with the number of examples done; may raise to end the pass.
OnDone = Callable[[int], None]

_ERRORS, _FEATURES = "errors", "features"


def results_on_cpu(
    computed: Iterable[tuple[slice, tuple[Tensor, ...]]],
) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """The same rows, with results on the CPU; those of CUDA once the next batch is queued."""
    last: tuple[torch.cuda.Event, slice, tuple[Tensor, ...]] | None = None
    for rows, results in computed:
        if results[0].device.type != "cuda":
            yield rows, results
            continue
        copies = tuple(
            torch.empty(result.shape, dtype=result.dtype, pin_memory=True).copy_(
                result, non_blocking=True
            )
            for result in results
        )
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(results[0].device))
        if last is not None:
            last[0].synchronize()
            yield last[1:]
        last = copied, rows, copies
    if last is not None:
        last[0].synchronize()
        yield last[1:]


_DIVERGED = "Weights that diverged need a lower learners.learning_rate."


def require_finite_rows(
    finite_B: Tensor, ids_B: Tensor, what: str, *, remedy: str = _DIVERGED
) -> None:
    bad = list(map(str, ids_B[~finite_B.cpu()].tolist()))
    if bad:
        raise SignalsError(
            f"the model's {what} are not finite for {len(bad)} of {len(ids_B)} examples, with "
            f"ids {listed(bad, 5)}: look at these rows and at the model. {remedy}"
        )


@dataclass(frozen=True)
class Read:
    """A batch as read: its rows, examples and targets, on the CPU."""

    rows: slice
    examples_B: Stored
    targets_B: Tensor


@dataclass(frozen=True)
class Batches:
    """Consecutive batches of a model's inputs and targets, decoded ahead in a thread.

    `size` is the examples of a batch. `on_progress` is called with (done, total) examples. `some`
    are N int64 ids, or None for all.
    """

    dataset: Dataset
    inputs: InputFormat
    device: torch.device
    size: int
    on_progress: OnProgress
    some: Tensor | None = None

    @property
    def ids_N(self) -> Tensor:
        return torch.arange(len(self.dataset)) if self.some is None else self.some

    def __len__(self) -> int:
        return len(self.ids_N)

    def __iter__(self) -> Iterator[tuple[slice, Inputs, Tensor]]:
        """Each batch's rows, and its inputs and targets on the device."""
        num_examples = len(self)
        with self.reading(row_blocks(num_examples, 1, self.size)) as batches:
            for batch in batches:
                targets_B = batch.targets_B.to(self.device, non_blocking=True)
                yield batch.rows, self.inputs_of(batch.examples_B), targets_B
                self.on_progress(batch.rows.stop, num_examples)

    def reading(self, blocks: Iterable[slice]) -> AbstractContextManager[Iterator[Read]]:
        """Stored batches, read ahead where reading takes time."""
        ids_N, targets_N = self.ids_N, self.dataset.targets_N

        def read(rows: slice) -> Read:
            examples_B, targets_B = self.dataset.examples(ids_N[rows]), targets_N[ids_N[rows]]
            if self.device.type == "cuda":
                return Read(rows, pinned(examples_B), targets_B.pin_memory())
            return Read(rows, examples_B, targets_B)

        # A user's rows are read only in the thread that opened them.
        if self.dataset.in_memory or not self.dataset.rows.concurrent:
            return nullcontext(map(read, blocks))
        return prefetched(read, blocks)

    def inputs_of(self, examples_B: Stored) -> Inputs:
        """A model's inputs on the device, from stored examples."""
        there_B = stored_on(examples_B, self.device, non_blocking=True)
        return to_model_input(there_B, self.inputs, self.device)


def pass_over(
    model: nn.Module,
    batches: Batches,
    errors_NC: Tensor,
    features_ND: Tensor,
    on_done: OnDone = lambda _: None,
) -> None:
    """Fill errors and features on the CPU in one forward pass, row i for the i-th id."""
    ids_N = batches.ids_N
    with evaluation_mode(model), computation(), torch.inference_mode():
        for rows, (finite_B, errors_BC, features_BD) in results_on_cpu(_outputs(model, batches)):
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            errors_NC[rows], features_ND[rows] = errors_BC, features_BD
            if features_ND.dtype == torch.float16:
                fits_B = features_ND[rows].isfinite().all(dim=-1)
                require_finite_rows(fits_B, ids_N[rows], "features, kept in float16,")
            on_done(rows.stop)


def _outputs(model: nn.Module, batches: Batches) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Each batch's rows, then its finite flags, errors and features."""
    target = batches.dataset.target
    for rows, inputs_B, targets_B in batches:
        logits_BC, features_BD = forward_with_features(model, inputs_B)
        finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
        yield rows, (finite_B, target.residuals(logits_BC, targets_B), features_BD)


def score_range(
    model: nn.Module,
    dataset: Dataset,
    task: ScoringTask,
    *,
    device: torch.device,
    on_done: OnDone = lambda _: None,
    some: Tensor | None = None,
) -> Weights:
    """The errors N x C and features N x D, on the CPU, of a range's examples or of `some`."""
    _, head = find_head(model)
    ids_N = torch.arange(task.start, task.stop) if some is None else some
    like = range_specs(task, head.in_features)
    errors_NC, features_ND = (
        torch.empty(len(ids_N), like[name].shape[1], dtype=like[name].dtype)
        for name in (_ERRORS, _FEATURES)
    )
    batches = Batches(dataset, task.inputs, device, task.batch_size, lambda *_: None, some=ids_N)
    with computation(task.threads):
        pass_over(model, batches, errors_NC, features_ND, on_done)
    return {_ERRORS: errors_NC, _FEATURES: features_ND}


def range_specs(task: ScoringTask, num_features: int) -> dict[str, TensorSpec]:
    halves = {_ERRORS: task.half_errors, _FEATURES: task.half_features}
    widths = {_ERRORS: task.num_classes, _FEATURES: num_features}
    return {
        name: TensorSpec((len(task), width), torch.float16 if halves[name] else torch.float32)
        for name, width in widths.items()
    }


def data_proof(dataset: Dataset, nonce: str, ids: Sequence[int]) -> str:
    """SHA-256, in hexadecimal, of a nonce, examples and targets; it requires the data."""
    proof = hashlib.sha256(nonce.encode())
    for row in ids:
        for part in (dataset.raw_bytes(row), dataset.targets_N[row].numpy().tobytes()):
            proof.update(hashlib.sha256(part).digest())
    return proof.hexdigest()


def encode_range(scored: Weights) -> bytes:
    """Encode a range without loss, with compressed exponents."""
    return encode_weights(scored, WeightEncoding.PLANES)


def read_range(source: bytes | Path, task: ScoringTask, num_features: int) -> tuple[Tensor, Tensor]:
    """The errors N x C and features N x D of an untrusted range file."""
    scored = dict(open_weights(source, like=range_specs(task, num_features)))
    if bad := non_finite(scored):
        raise SignalsError(f"{bad}: of examples {task.start} to {task.stop - 1}. Score them again.")
    return scored[_ERRORS], scored[_FEATURES]
