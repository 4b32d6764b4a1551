"""Scan job: a pass over the data, shared with workers and verified."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import LiptError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ColumnsFormat, InputFormat
from lipt.common.models import find_head
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.signals.passes import encode_range, read_range, score_range
from lipt.common.targets.values import MultiLabel, Regression
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.scan import (
    HERE,
    RangeDone,
    RangeFile,
    RangeFolder,
    Scan,
    ScanClosed,
    ScanOpened,
    WorkerDistrusted,
    range_size,
    scans_dir,
)
from lipt.coordinator.settings import ScoringWorkers
from lipt.core.signals.compute import empty_signals
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS
from lipt.core.stages.warm_up import model_signals
from lipt.core.workspace import model_seed

# Believing: whether what workers have sent of a scan is what its examples have.
#
# One batch of each new worker is computed here as well, drawn by nothing that it could know. Who is
# believed once is so for the whole scan: a lie about a few examples may go unnoticed.

# Of a thousand workers not each can be tried.
_MOST_TRIED = 8
# What another kind of machine may differ by.
_TOLERANCE = 1e-2


class Believing:
    """The workers of one scan that are believed."""

    def __init__(
        self,
        scan: Scan,
        score: Callable[[ScoringTask], Weights],
        read: Callable[[RangeFile], Sequence[Tensor] | None],
    ) -> None:
        """Begin with none.

        Args:
            scan: what they share.
            score: computes some examples here.
            read: what a file holds; None where the disk has changed it.
        """
        self._scan = scan
        self._score = score
        self._read = read
        self._believed: set[str] = set()

    def liars(self, sent: Mapping[str, Sequence[RangeFile]]) -> list[str]:
        """The workers whose values are not their examples'; all others are believed from here on.

        Args:
            sent: by worker, the ranges that it has handed in.
        """
        strangers = [who for who in sent if who not in self._believed]
        tried = secrets.SystemRandom().sample(strangers, min(_MOST_TRIED, len(strangers)))
        found = [who for who in tried if not self._is_right(secrets.choice(sent[who]))]
        self._believed.update(set(sent) - set(found))
        return found

    def _is_right(self, file: RangeFile) -> bool:
        """Whether a batch of a range comes out the same here."""
        found = self._read(file)
        if found is None:
            return True  # the disk's fault, and missing from here on
        batch = self._scan.batch(file.index, secrets.randbelow(self._scan.num_batches))
        here = self._score(batch).values()
        start = self._scan.task(file.index).start
        rows = slice(batch.start - start, batch.stop - start)
        same = torch.equal if self._scan.kind else _close
        return all(same(mine, theirs[rows]) for mine, theirs in zip(here, found, strict=True))


def _close(mine: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(mine.float(), theirs.float(), rtol=_TOLERANCE, atol=_TOLERANCE)


# Shared pass: a model's errors and features of all examples, computed here and by workers.
#
# Every range has the bits of one pass over all, whoever has computed it: batches, threads and
# kernels are the same, and where `compute.scoring_workers` is not `any`, so is the kind of the
# machine. A worker's values are believed only after a batch of them, drawn by nothing that it could
# know, was computed here as well.

logger = logging.getLogger(__name__)

# How often it is looked whether a worker was quicker.
_LOOK_SECONDS = 1.0


class _OvertakenError(Exception):
    """A worker has handed in the range that was being computed."""


def scanned_signals(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module, *, weights: BlobName
) -> Signals:
    """Errors and features, as `model_signals` gives them.

    Args:
        context: whose data is looked at.
        config: of the run.
        inputs: what the model is given.
        model: on the context's device.
        weights: what it has, as workers can fetch it.

    Raises:
        SignalsError, ConfigError: as `compute_signals`.
        StateError: the state directory cannot be written.
    """
    scan = scan_of(context, config, inputs, model, weights)
    alone = context.settings.compute.scoring_workers is ScoringWorkers.NONE
    if scan.num_ranges < 2 or alone:
        return model_signals(context, config, inputs, model)
    return _SharedPass(context, scan, model).run()


def scan_of(
    context: Context,
    config: RunConfig,
    inputs: InputFormat,
    model: nn.Module,
    weights: BlobName,
) -> Scan:
    """How a model's pass over the data is parted."""
    _, head = find_head(model)
    dataset, compute = context.dataset, context.settings.compute
    target, num_examples = dataset.target, len(dataset)
    halves = [
        dtype == torch.float16
        for dtype in (
            STORAGE_LIMITS.error_dtype(num_examples * head.out_features),
            STORAGE_LIMITS.feature_dtype(num_examples * head.in_features),
        )
    ]
    whole = ScoringTask(
        model=config.model,
        num_classes=target.num_outputs,
        image=inputs if isinstance(inputs, ImageFormat) else None,
        columns=inputs if isinstance(inputs, ColumnsFormat) else None,
        other_target=target if isinstance(target, MultiLabel | Regression) else None,
        fingerprint=context.own_fingerprint,
        start=0,
        stop=num_examples,
        batch_size=context.batch_size,
        threads=config.evaluation_threads,
        half_errors=halves[0],
        half_features=halves[1],
        quarantined=dataset.quarantined,
        seed=model_seed(config),
    )
    same = compute.scoring_workers is ScoringWorkers.SAME
    versions = versions_on(context.device)
    return Scan(
        whole,
        weights,
        num_features=head.in_features,
        range_examples=range_size(compute.scoring_range, context.batch_size),
        kind=kind_of(device_name(context.device), versions) if same else "",
        lipt=versions["lipt"],
    )


class _SharedPass:
    """One scan, in the process that needs it."""

    def __init__(self, context: Context, scan: Scan, model: nn.Module) -> None:
        self._context = context
        self._scan = scan
        self._model = model
        self._folder = RangeFolder(scans_dir(context.settings.state_dir), scan.scan_id)
        self._score = partial(score_range, model, context.dataset, device=context.device)
        self._believing = Believing(scan, self._score, self._read)
        self._began = monotonic()

    def run(self) -> Signals:
        """All ranges, whoever computes them."""
        self._folder.open()
        present = frozenset(self._folder.files())
        self._context.send(
            ScanOpened("", 0, 0, scan_id=self._scan.scan_id, scan=self._scan, present=present)
        )
        while True:
            self._fill()
            if self._holds() and (signals := self._gathered()) is not None:
                break
        self._context.send(ScanClosed("", 0, 0, scan_id=self._scan.scan_id))
        self._say_who()
        self._folder.discard()
        return signals

    def _missing(self) -> list[int]:
        present = self._folder.files().keys()
        return [index for index in range(self._scan.num_ranges) if index not in present]

    def _fill(self) -> None:
        """Go through what is missing from the end on, until nothing is."""
        while missing := self._missing():
            index, before = missing[-1], len(missing)
            num_done = len(self._scan.whole) - sum(len(self._scan.task(one)) for one in missing)
            try:
                scored = self._score(
                    self._scan.task(index), on_done=self._watching(index, num_done)
                )
            except _OvertakenError:
                continue
            self._folder.keep(index, HERE, encode_range(scored))
            self._context.send(RangeDone("", 0, 0, scan_id=self._scan.scan_id, index=index))
            if before == self._scan.num_ranges:
                self._say_how_long(len(self._scan.task(index)))

    def _watching(self, index: int, num_done: int) -> _Watching:
        return _Watching(self._context, self._folder, index, num_done, len(self._scan.whole))

    def _holds(self) -> bool:
        """Whether what workers have sent is what it should be; what is not, is removed."""
        sent = self._folder.by_worker()
        liars = self._believing.liars(sent)
        for who in liars:
            logger.warning(
                "worker %s has sent signals that its examples do not have: all of its %d ranges "
                "are scored again, and it gets no more",
                who,
                len(sent[who]),
            )
            for file in sent[who]:
                file.path.unlink(missing_ok=True)
            ranges = frozenset(file.index for file in sent[who])
            news = WorkerDistrusted(
                "", 0, 0, scan_id=self._scan.scan_id, worker_id=who, ranges=ranges
            )
            self._context.send(news)
        return not liars

    def _gathered(self) -> Signals | None:
        """All ranges as one; None where one turns out to be missing."""
        dataset, scratch = self._context.dataset, self._context.signals_dir
        signals = empty_signals(self._model, dataset, torch.arange(len(dataset)), scratch=scratch)
        files = self._folder.files()
        for index in range(self._scan.num_ranges):
            found = self._read(files[index]) if index in files else None
            if found is None:
                return None
            task = self._scan.task(index)
            rows = slice(task.start, task.stop)
            signals.errors_NC[rows], signals.features_ND[rows] = found
        return signals

    def _read(self, file: RangeFile) -> Sequence[Tensor] | None:
        """What a file holds; None where that is nothing, and then it is gone."""
        try:
            if file.is_whole():
                task = self._scan.task(file.index)
                return read_range(file.path, task, self._scan.num_features)
        except (LiptError, OSError) as error:
            logger.warning("%s cannot be used, its examples are scored again: %s", file.path, error)
            file.path.unlink(missing_ok=True)
        return None

    def _say_how_long(self, num_done: int) -> None:
        seconds = (monotonic() - self._began) * len(self._scan.whole) / num_done
        logger.info(
            "signals of %d examples take about %.0f s here alone; workers of the same kind that "
            "have the data (--worker-data) share them",
            len(self._scan.whole),
            seconds,
        )

    def _say_who(self) -> None:
        sent = self._folder.by_worker()
        logger.info(
            "signals of %d examples in %.1f s: of %d ranges, %d by %d workers",
            len(self._scan.whole),
            monotonic() - self._began,
            self._scan.num_ranges,
            sum(map(len, sent.values())),
            len(sent),
        )


class _Watching:
    """Tells how far a scan is while a range of it is computed, and ends that where it is done."""

    def __init__(
        self, context: Context, folder: RangeFolder, index: int, num_done: int, num_examples: int
    ) -> None:
        self._context = context
        self._folder = folder
        self._index = index
        self._num_done = num_done
        self._num_examples = num_examples
        self._looked_at = monotonic()

    def __call__(self, num_done: int) -> None:
        """So many examples of the range are done."""
        self._context.report("computing signals", self._num_done + num_done, self._num_examples)
        now = monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            if self._folder.has(self._index):
                raise _OvertakenError
