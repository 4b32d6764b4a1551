"""Scan: a pass over all examples in ranges, computed here and by workers that have the data.

The job starts at the last range, workers at the first, so nothing waits for a worker. Done ranges
survive a restart. Results equal those of a single pass to the bit, unless `compute.scoring_workers`
is `any`. A worker's ranges are used only after a random batch of them was reproduced here. A few
wrong examples may go unnoticed.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import make_directory, state_errors, write_durably
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import LiptError
from lipt.common.inputs.specs import ColumnsFormat, ImageFormat, InputFormat
from lipt.common.models import find_head
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.signals.passes import encode_range, read_range, score_range
from lipt.common.targets.values import MultiLabel, Regression
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.settings import ScoringWorkers
from lipt.core.signals.compute import empty_signals
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS
from lipt.core.stages.warm_up import model_signals
from lipt.core.workspace import model_seed

logger = logging.getLogger(__name__)

HERE = "here"
# Prefix of scan ids; run ids never have it.
SCAN = "scan-"
# Interrupted scans that are kept: two users' selections may alternate.
_MOST_SCANS = 3


@dataclass(frozen=True)
class RangeFile:
    """A computed range in the file INDEX.WHO.SHA256; WHO is a worker's id or `here`."""

    index: int
    who: str
    sha256: str
    path: Path


def scans_dir(state_dir: Path) -> Path:
    return state_dir / "signals" / "scans"


class RangeFolder:
    """The stored ranges of one scan; shared by processes, and kept across restarts."""

    def __init__(self, folder: Path, scan_id: str) -> None:
        self._scans = folder
        self.path = folder / scan_id

    def open(self) -> None:
        """Make this folder the newest, and remove the oldest ones."""
        with state_errors(self.path):
            make_directory(self.path)
            self.path.touch()
            folders = sorted(self._scans.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in folders[:-_MOST_SCANS]:
                shutil.rmtree(old)

    def files(self) -> Mapping[int, RangeFile]:
        files = {}
        for path in sorted(self.path.glob("*.*.*")):
            index, who, sha256 = path.name.split(".", 2)
            if index.isdecimal():
                files[int(index)] = RangeFile(int(index), who, sha256, path)
        return files

    def keep(self, index: int, who: str, content: bytes) -> None:
        """Store a range durably; a StateError if the scan is over and its folder removed."""
        with state_errors(self.path):
            write_durably(self.path / f"{index}.{who}.{BlobName.of(content).sha256}", content)


@dataclass(frozen=True)
class Scan:
    """A pass in ranges of whole batches; `kind` names machines with equal bits (empty: any)."""

    whole: ScoringTask
    weights: BlobName
    num_features: int
    range_examples: int
    kind: str
    lipt: str

    @cached_property
    def scan_id(self) -> str:
        return f"{SCAN}{hashlib.sha256(repr(self).encode()).hexdigest()[:32]}"

    @property
    def num_ranges(self) -> int:
        return -(-len(self.whole) // self.range_examples)

    @property
    def num_batches(self) -> int:
        """The batches of a range; the last range may have fewer."""
        return self.range_examples // self.whole.batch_size

    def task(self, index: int) -> ScoringTask:
        start = index * self.range_examples
        return replace(
            self.whole, start=start, stop=min(start + self.range_examples, self.whole.stop)
        )

    def batch(self, index: int, number: int) -> ScoringTask:
        """The task of one batch of a range; `number` counts modulo the range's batches."""
        task = self.task(index)
        start = task.start + number % -(-len(task) // task.batch_size) * task.batch_size
        return replace(task, start=start, stop=min(start + task.batch_size, task.stop))

    @property
    def max_file_bytes(self) -> int:
        """An upper bound of a range's file: values, a mask bit for each, and a header."""
        row_bytes = 5 * (self.whole.num_classes + self.num_features)
        return self.range_examples * row_bytes + 2**20


@dataclass(frozen=True)
class ScanOpened(ScanNews):
    """All ranges except the `present` ones are wanted."""

    scan: Scan
    present: frozenset[int]


@dataclass(frozen=True)
class RangeDone(ScanNews):
    """The job has computed a range itself."""

    index: int


@dataclass(frozen=True)
class WorkerDistrusted(ScanNews):
    """A worker sent wrong values: all its `ranges` are wanted again."""

    worker_id: str
    ranges: frozenset[int]


# Values from another kind of machine may differ by this much.
_TOLERANCE = 1e-2


def scanned_signals(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module, *, weights: BlobName
) -> Signals:
    """Errors and features as of `model_signals`; `weights` is the model's stored blob."""
    scan = scan_of(context, config, inputs, model, weights)
    alone = context.settings.compute.scoring_workers is ScoringWorkers.NONE
    if scan.num_ranges < 2 or alone:
        return model_signals(context, config, inputs, model)
    return _SharedPass(context, scan, model).run()


def scan_of(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module, weights: BlobName
) -> Scan:
    _, head = find_head(model)
    dataset, compute = context.dataset, context.settings.compute
    target, num_examples = dataset.target, len(dataset)
    error_dtype = STORAGE_LIMITS.error_dtype(num_examples * head.out_features)
    feature_dtype = STORAGE_LIMITS.feature_dtype(num_examples * head.in_features)
    whole = ScoringTask(
        model=config.model,
        num_classes=target.num_outputs,
        image=inputs if isinstance(inputs, ImageFormat) else None,
        columns=inputs if isinstance(inputs, ColumnsFormat) else None,
        other_target=target if isinstance(target, MultiLabel | Regression) else None,
        fingerprint=dataset.fingerprint,
        start=0,
        stop=num_examples,
        batch_size=context.batch_size,
        threads=config.evaluation_threads,
        half_errors=error_dtype == torch.float16,
        half_features=feature_dtype == torch.float16,
        quarantined=dataset.quarantined,
        seed=model_seed(config),
    )
    same = compute.scoring_workers is ScoringWorkers.SAME
    versions = versions_on(context.device)
    return Scan(
        whole,
        weights,
        num_features=head.in_features,
        # Rounded up to whole batches.
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
        self._folder.open()
        scan_id, present = self._scan.scan_id, frozenset(self._folder.files())
        self._context.send(ScanOpened(scan_id, self._scan, present))
        while True:
            self._fill()
            # Ranges that arrive later are ignored: their worker may be unverified.
            files = self._folder.files()
            if not self._removed_wrong(files) and (signals := self._gathered(files)) is not None:
                break
        self._context.send(ScanClosed(scan_id))
        self._log_shares(files)
        shutil.rmtree(self._folder.path, ignore_errors=True)
        return signals

    def _fill(self) -> None:
        """Compute missing ranges, last one first, until none is missing."""
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
            self._context.send(RangeDone(self._scan.scan_id, missing[-1]))

    def _removed_wrong(self, files: Mapping[int, RangeFile]) -> bool:
        """Verify new workers, and remove all ranges of those with wrong values."""
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
                self._context.send(WorkerDistrusted(self._scan.scan_id, who, ranges))
        return removed

    def _is_right(self, sent: Sequence[RangeFile]) -> bool | None:
        """Whether a random batch is reproduced here; None if no file is readable."""
        for file in secrets.SystemRandom().sample(sent, len(sent)):
            found = self._read(file)
            if found is None:
                continue  # a disk error: the range is missing from now on
            batch = self._scan.batch(file.index, secrets.randbelow(self._scan.num_batches))
            here = self._score(batch).values()
            start = self._scan.task(file.index).start
            rows = slice(batch.start - start, batch.stop - start)
            same = torch.equal if self._scan.kind else _close
            return all(same(mine, theirs[rows]) for mine, theirs in zip(here, found, strict=True))
        return None

    def _gathered(self, files: Mapping[int, RangeFile]) -> Signals | None:
        """All ranges joined; None if one is missing."""
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
        """The values of a file; a damaged file is removed, and gives None."""
        why: object = "it is damaged"
        try:
            if BlobName.of_file(file.path).sha256 == file.sha256:
                task = self._scan.task(file.index)
                return read_range(file.path, task, self._scan.num_features)
        except (LiptError, OSError) as error:
            why = error
        logger.warning("%s cannot be used, its examples are scored again: %s", file.path, why)
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
