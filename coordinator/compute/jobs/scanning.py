"""Shared pass: a model's errors and features of all examples, computed here and by workers.

The job goes through the ranges from the last one on, workers begin with the first ones. So nothing
waits for a worker, and an interrupted pass goes on with the ranges that are missing.

Every range has the bits of one pass over all: batches, threads and kernels are the same, and so is
the kind of the machine unless `compute.scoring_workers` is `any`. A worker's ranges are used only
after one batch of them, drawn at random, came out the same here; a few wrong examples may go
unnoticed.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import LiptError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ColumnsFormat, InputFormat
from lipt.common.models import find_head
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.signals.passes import encode_range, read_range, score_range
from lipt.common.targets.values import MultiLabel, Regression
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
    scans_dir,
)
from lipt.coordinator.settings import ScoringWorkers
from lipt.core.signals.compute import empty_signals
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS
from lipt.core.stages.warm_up import model_signals
from lipt.core.workspace import model_seed

logger = logging.getLogger(__name__)

# Values of another kind of machine may differ by this.
_TOLERANCE = 1e-2


def scanned_signals(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module, *, weights: BlobName
) -> Signals:
    """Errors and features, as `model_signals` gives them; `weights` are the model's, stored.

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
    """A model's pass over the data in ranges."""
    _, head = find_head(model)
    dataset, compute = context.dataset, context.settings.compute
    target, num_examples = dataset.target, len(dataset)
    full = context.settings.dataset.fingerprint is FingerprintKind.FULL
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
        fingerprint=dataset.full_fingerprint if full else dataset.fingerprint,
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
        # Whole batches.
        range_examples=-(-compute.scoring_range // context.batch_size) * context.batch_size,
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
        self._verified: set[str] = set()
        self._began = monotonic()

    def run(self) -> Signals:
        """All ranges, whoever computes them."""
        self._folder.open()
        scan_id, present = self._scan.scan_id, frozenset(self._folder.files())
        self._context.send(ScanOpened(scan_id=scan_id, scan=self._scan, present=present))
        while True:
            self._fill()
            # A range that comes later than this is not looked at: its worker may be unverified.
            files = self._folder.files()
            if not self._removed_wrong(files) and (signals := self._gathered(files)) is not None:
                break
        self._context.send(ScanClosed(scan_id=scan_id))
        self._log_shares(files)
        self._folder.discard()
        return signals

    def _fill(self) -> None:
        """Compute missing ranges from the end on, until none is missing."""
        num_examples = len(self._scan.whole)
        while True:
            present = self._folder.files().keys()
            missing = [index for index in range(self._scan.num_ranges) if index not in present]
            if not missing:
                return
            task = self._scan.task(missing[-1])
            before = num_examples - sum(len(self._scan.task(one)) for one in missing)

            def on_done(done: int, before: int = before) -> None:
                self._context.report("computing signals", before + done, num_examples)

            self._folder.keep(missing[-1], HERE, encode_range(self._score(task, on_done=on_done)))
            self._context.send(RangeDone(scan_id=self._scan.scan_id, index=missing[-1]))

    def _removed_wrong(self, files: Mapping[int, RangeFile]) -> bool:
        """Verify workers that are new, and remove the ranges of those that sent wrong values."""
        removed = False
        for who, sent in _by_worker(files).items():
            right = True if who in self._verified else self._is_right(sent)
            if right:
                self._verified.add(who)
            elif right is False:
                removed = True
                logger.warning(
                    "worker %s has sent signals that its examples do not have: all of its %d "
                    "ranges are scored again, and it gets no more",
                    who,
                    len(sent),
                )
                for file in sent:
                    file.path.unlink(missing_ok=True)
                ranges = frozenset(file.index for file in sent)
                self._context.send(
                    WorkerDistrusted(scan_id=self._scan.scan_id, worker_id=who, ranges=ranges)
                )
        return removed

    def _is_right(self, sent: Sequence[RangeFile]) -> bool | None:
        """Whether a random batch comes out the same here; None where no file can be read."""
        for file in secrets.SystemRandom().sample(sent, len(sent)):
            found = self._read(file)
            if found is None:
                continue  # the disk's fault: the range is missing from here on
            batch = self._scan.batch(file.index, secrets.randbelow(self._scan.num_batches))
            here = self._score(batch).values()
            start = self._scan.task(file.index).start
            rows = slice(batch.start - start, batch.stop - start)
            same = torch.equal if self._scan.kind else _close
            return all(same(mine, theirs[rows]) for mine, theirs in zip(here, found, strict=True))
        return None

    def _gathered(self, files: Mapping[int, RangeFile]) -> Signals | None:
        """All ranges as one; None where one is missing."""
        dataset, scratch = self._context.dataset, self._context.signals_dir
        signals = empty_signals(self._model, dataset, torch.arange(len(dataset)), scratch=scratch)
        for index in range(self._scan.num_ranges):
            found = self._read(files[index]) if index in files else None
            if found is None:
                return None
            task = self._scan.task(index)
            rows = slice(task.start, task.stop)
            signals.errors_NC[rows], signals.features_ND[rows] = found
        return signals

    def _read(self, file: RangeFile) -> Sequence[Tensor] | None:
        """The values of a file; None where it is damaged, and then it is removed."""
        try:
            if file.is_whole():
                task = self._scan.task(file.index)
                return read_range(file.path, task, self._scan.num_features)
        except (LiptError, OSError) as error:
            logger.warning("%s cannot be used, its examples are scored again: %s", file.path, error)
            file.path.unlink(missing_ok=True)
        return None

    def _log_shares(self, files: Mapping[int, RangeFile]) -> None:
        sent = _by_worker(files)
        logger.info(
            "signals of %d examples in %.1f s: of %d ranges, %d by %d workers",
            len(self._scan.whole),
            monotonic() - self._began,
            self._scan.num_ranges,
            sum(map(len, sent.values())),
            len(sent),
        )


def _by_worker(files: Mapping[int, RangeFile]) -> Mapping[str, list[RangeFile]]:
    sent: defaultdict[str, list[RangeFile]] = defaultdict(list)
    for file in files.values():
        if file.who != HERE:
            sent[file.who].append(file)
    return sent


def _close(mine: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(mine.float(), theirs.float(), rtol=_TOLERANCE, atol=_TOLERANCE)
