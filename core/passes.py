"""Passes over the data: values of each example by one forward pass, for all examples or a range.

Errors are of each example's OWN loss: a batch mean would overweight a smaller last batch. Results
do not depend on ranges if each begins with a batch. A range's values travel as a file.

Shapes: N examples, B of a batch, L positions, V tokens, C classes, D features.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import SignalsError
from lipt.common.tensor_files import TensorSpec, Weights, non_finite
from lipt.common.text import listed
from lipt.core.tasks import ScoredValues, ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored, pinned, stored_on, to_model_input
from lipt.data.inputs.specs import InputFormat, Inputs, call_model, tokens_in
from lipt.data.parallel import prefetched
from lipt.data.sources.tables.causal import BEGIN, PADDING
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED, Target
from lipt.models.encodings import encode_weights, open_weights
from lipt.models.head import (
    evaluation_mode,
    find_head,
    forward_with_features,
    forward_with_states,
)

BLOCK_BYTES = 64 * 1024**2
# With more narrow rows at a time, what is computed from them leaves a CPU's cache.
CACHED_ROWS = 4096
# Logits at a time.
_MOST_LOGITS = 2**26


def row_blocks(
    num_rows: int, row_bytes: int, block_bytes: int = BLOCK_BYTES, most_rows: int | None = None
) -> Iterator[slice]:
    """Consecutive slices of all rows, each of at most `block_bytes` and at least one row."""
    size = max(1, block_bytes // max(1, row_bytes))
    if most_rows is not None:
        size = min(size, most_rows)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def texts_at_once(target: Target) -> int:
    """As many examples as may be scored together: a text has logits for each position."""
    length = getattr(target, "length", 1)
    return max(1, _MOST_LOGITS // (length * target.num_outputs))


OnProgress = Callable[[int, int], None]
# Called after every batch with the number of examples done; may raise to end the pass.
OnDone = Callable[[int], None]

# Names of values.
ERRORS, FEATURES, LOSSES, RIGHT = "errors", "features", "losses", "right"


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
    on_progress: OnProgress = lambda *_: None
    some: Tensor | None = None

    @cached_property
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
    kind: PassKind,
    into: Mapping[str, Tensor],
    on_done: OnDone = lambda _: None,
    *,
    bfloat16: bool = False,
) -> None:
    """Fill arrays on the CPU, as of `value_specs`, in one forward pass, row i for the i-th id.

    bfloat16: whether the model runs under bfloat16 autocast. SignalsError, with the first ids, for
    values that are not finite, or too large for float16.
    """
    ids_N, target = batches.ids_N, batches.dataset.target
    outputs = (
        (rows, kind.compute(model, target, inputs_B, targets_B))
        for rows, inputs_B, targets_B in batches
    )
    with (
        evaluation_mode(model),
        computation(),
        torch.inference_mode(),
        torch.autocast(batches.device.type, torch.bfloat16, enabled=bfloat16),
    ):
        for rows, (finite_B, *values_of_batch) in results_on_cpu(outputs):
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            for (name, all_N), own_B in zip(into.items(), values_of_batch, strict=True):
                all_N[rows] = own_B
                if all_N.dtype == torch.float16:
                    fits_B = all_N[rows].isfinite().all(dim=-1)
                    require_finite_rows(fits_B, ids_N[rows], f"{name}, kept in float16,")
            on_done(rows.stop)


@dataclass(frozen=True)
class PassKind:
    """The values of a pass.

    compute: of a batch, finite flags and then the values, in the order of their names.
    """

    names: tuple[str, ...]
    compute: Callable[[nn.Module, Target, Inputs, Tensor], tuple[Tensor, ...]]


def _signals(
    model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    logits_BC, features_BD = forward_with_features(model, inputs_B)
    finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
    return finite_B, target.residuals(logits_BC, targets_B), features_BD


def _losses(
    model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor
) -> tuple[Tensor, Tensor]:
    losses_B = target.losses(call_model(model, inputs_B), targets_B)
    return losses_B.isfinite(), losses_B


def _losses_and_features(
    model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    states = with_mean_states if target.kind is TargetKind.TOKENS else forward_with_features
    outputs_B, features_BD = states(model, inputs_B)
    losses_B = target.losses(outputs_B, targets_B)
    return losses_B.isfinite() & features_BD.isfinite().all(dim=-1), losses_B, features_BD


def _unprompted(
    model: nn.Module, target: Target, inputs_B: Inputs, wanted_BL: Tensor
) -> tuple[Tensor, Tensor]:
    return _losses(model, target, *without_prompts(tokens_in(inputs_B), wanted_BL))


def _losses_and_right(
    model: nn.Module, target: Target, inputs_B: Inputs, wanted_BL: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    outputs_BLV = call_model(model, inputs_B)
    losses_B = target.losses(outputs_BLV, wanted_BL)
    # No token equals MASKED.
    return losses_B.isfinite(), losses_B, (outputs_BLV.argmax(dim=-1) == wanted_BL).sum(dim=1)


KINDS: Mapping[ScoredValues, PassKind] = {
    ScoredValues.SIGNALS: PassKind((ERRORS, FEATURES), _signals),
    ScoredValues.LOSSES: PassKind((LOSSES,), _losses),
    ScoredValues.LOSSES_AND_FEATURES: PassKind((LOSSES, FEATURES), _losses_and_features),
    ScoredValues.UNPROMPTED: PassKind((LOSSES,), _unprompted),
}
_TEXT_SCORES = PassKind((LOSSES, RIGHT), _losses_and_right)


def score_texts(
    model: nn.Module, batches: Batches, *, bfloat16: bool = False
) -> tuple[Tensor, Tensor]:
    """Each text's loss, float32 N, and its number of right tokens, int64 N; as `pass_over`.

    A greedy completion is right in all tokens exactly if each token is the most likely one after
    the right ones before it, so one forward pass decodes.
    """
    losses_N, right_N = torch.empty(len(batches)), torch.empty(len(batches), dtype=torch.int64)
    into = {LOSSES: losses_N, RIGHT: right_N}
    pass_over(model, batches, _TEXT_SCORES, into, bfloat16=bfloat16)
    return losses_N, right_N


def without_prompts(tokens_BL: Tensor, wanted_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Completions alone: tokens and next tokens from the first that counts on."""
    counted_BL = wanted_BL != MASKED
    places_BL = counted_BL.int().argmax(dim=1, keepdim=True) + torch.arange(
        wanted_BL.shape[1], device=wanted_BL.device
    )
    is_beyond_BL, last = places_BL >= wanted_BL.shape[1], wanted_BL.shape[1] - 1
    places_BL = places_BL.clamp(max=last)
    moved_BL = tokens_BL.gather(1, places_BL).masked_fill(is_beyond_BL, PADDING)
    moved_BL[:, 0] = BEGIN
    return moved_BL, wanted_BL.gather(1, places_BL).masked_fill(is_beyond_BL, MASKED)


def with_mean_states(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """A causal model's logits, and means of its last hidden states, B x D: later ones weigh more.

    Source: RDS+ (Ivison et al. 2025, arXiv:2503.01807).
    """
    tokens_BL, (logits_BLV, states_BLD) = tokens_in(inputs), forward_with_states(model, inputs)
    is_text_BL = tokens_BL != PADDING
    ranks_BL = is_text_BL.cumsum(dim=1) * is_text_BL
    shares_BL = ranks_BL / ranks_BL.sum(dim=1, keepdim=True).clamp(min=1)
    return logits_BLV, (shares_BL[:, None] @ states_BLD.float())[:, 0]


def value_specs(
    values: ScoredValues,
    num_examples: int,
    *,
    num_outputs: int,
    num_features: int,
    halves: Collection[str] = (),
) -> dict[str, TensorSpec]:
    """The arrays of a pass by name; those named in `halves` are float16, the others float32."""
    rest = {ERRORS: (num_outputs,), FEATURES: (num_features,), LOSSES: ()}
    return {
        name: TensorSpec(
            (num_examples, *rest[name]), torch.float16 if name in halves else torch.float32
        )
        for name in KINDS[values].names
    }


def score_range(
    model: nn.Module,
    dataset: Dataset,
    task: ScoringTask,
    *,
    device: torch.device,
    on_done: OnDone = lambda _: None,
    some: Tensor | None = None,
) -> Weights:
    """The task's values, on the CPU, of a range's examples or of the N ids in `some`."""
    _, head = find_head(model)
    ids_N = torch.arange(task.start, task.stop) if some is None else some
    scored = {
        name: torch.empty(len(ids_N), *spec.shape[1:], dtype=spec.dtype)
        for name, spec in range_specs(task, head.in_features).items()
    }
    batches = Batches(dataset, task.inputs, device, task.batch_size, some=ids_N)
    with computation(task.threads):
        pass_over(model, batches, KINDS[task.values], scored, on_done)
    return scored


def range_specs(task: ScoringTask, num_features: int) -> dict[str, TensorSpec]:
    return value_specs(
        task.values,
        len(task),
        num_outputs=task.num_classes,
        num_features=num_features,
        halves=[ERRORS] * task.half_errors + [FEATURES] * task.half_features,
    )


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


def read_range(source: bytes | Path, task: ScoringTask, num_features: int) -> Weights:
    """The values of an untrusted range file, by name."""
    specs = range_specs(task, num_features)
    scored = dict(open_weights(source, like=specs))
    if bad := non_finite(scored):
        raise SignalsError(f"{bad}: of examples {task.start} to {task.stop - 1}. Score them again.")
    return {name: scored[name] for name in specs}


# A manifest states the probability for this fraction of a credential's examples.
STATED_FRACTION = 0.01


def account(
    num_here: int, num_examples: Mapping[str, int], num_verified: Mapping[str, int], share: float
) -> dict[str, Any]:
    """Numbers of scored and of verified examples by credential, for a manifest."""
    credentials = [
        {
            "credential": credential,
            "num_examples": number,
            "num_verified": num_verified.get(credential, 0),
            "unnoticed_at_1_percent": unnoticed(share, STATED_FRACTION * number),
        }
        for credential, number in sorted(num_examples.items())
    ]
    return {"num_here": num_here, "verified_share": share, "credentials": credentials}


def unnoticed(share: float, num_forged: float) -> float:
    """The probability that none of the forged examples is among those drawn."""
    return float((1.0 - share) ** num_forged)


def merged_account(*accounts: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """One account of several passes, with the least share of examples that was verified."""
    given = list(filter(None, accounts))
    if len(given) < 2:
        return given[0] if given else None
    num_examples, num_verified = Counter[str](), Counter[str]()
    for each in (
        credential for given_account in given for credential in given_account["credentials"]
    ):
        num_examples[each["credential"]] += each["num_examples"]
        num_verified[each["credential"]] += each["num_verified"]
    share = min(part["verified_share"] for part in given)
    return account(sum(part["num_here"] for part in given), num_examples, num_verified, share)
