"""Scan: a pass over all examples in ranges, computed here and by workers that have the data.

The job starts at the last range, workers at the first, so nothing waits for a worker. Done ranges
survive a restart. Results equal those of a single pass to the bit, unless `compute.scoring_workers`
is `any`. A worker's ranges count for its credential: the certificate, token or host that it calls
with. After one wrong example nothing that a credential sent is used any more.

A random share of the examples that workers score is scored here again. Each is drawn with the
probability `share` after its range has come in, at any time and from any credential. So n forged
examples go unnoticed with a probability of (1 - share)^n. Many workers bring more than one process
can verify. Then the share falls for a while, but never below 1,000 examples of the whole pass.
`least_share` is the lowest one that was used.

On one kind of machine, batches of one size mostly give a row the same bits, whatever the other rows
are. Drawn examples therefore fill batches of the worker's size. A row that differs is scored once
more in the batch that the worker had, which decides. Where that confirms it, its place in a batch
has changed the last bits: from then on only rows beyond a tolerance are scored once more.

Shapes: K drawn examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import make_directory, state_errors, write_durably
from lipt.common.errors import LiptError
from lipt.common.nested import parse_json
from lipt.common.process.devices import device_name, kind_of, versions_on
from lipt.common.tensor_files import load_tensors, pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.settings import ScoringWorkers
from lipt.core.passes import (
    ERRORS,
    FEATURES,
    account,
    data_proof,
    encode_range,
    range_specs,
    read_range,
    score_range,
)
from lipt.core.signals.compute import allocated, stored_specs
from lipt.core.stages.warm_up import ModelPass, PassResult, pass_here
from lipt.core.tasks import ScoringTask, model_of
from lipt.core.workspace import model_seed
from lipt.models.head import find_head

logger = logging.getLogger(__name__)

HERE = "here"
# Prefix of scan ids; run ids never have it.
SCAN = "scan-"
# Interrupted scans that are kept: two users' selections may alternate.
_MOST_SCANS = 3
# Examples by which a worker proves that it has the data.
_PROOF_EXAMPLES = 16
# Score the examples with these ids: their values, in the order of the pass.
ScoreIds = Callable[[Tensor], Sequence[Tensor]]

# Values from another kind of machine, or from another place in a batch, may differ by this much.
OTHER_KIND, OTHER_PLACE = 2e-3, 1e-4
# A pass draws at least this many examples. Verification may lag by this share of its examples.
_FEWEST_DRAWN, _SHARE_WAITING = 1000, 0.05


@dataclass(frozen=True)
class RangeFile:
    """A computed range in the file INDEX.CREDENTIAL.SHA256; CREDENTIAL is a worker's or `here`."""

    index: int
    credential: str
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
        files: dict[int, RangeFile] = {}
        for path in sorted(self.path.glob("*.*.*")):
            index, credential, sha256 = path.name.split(".", 2)
            # A range that was computed here as well is that one.
            if index.isdecimal() and (credential == HERE or int(index) not in files):
                files[int(index)] = RangeFile(int(index), credential, sha256, path)
        return files

    def keep(self, index: int, credential: str, content: bytes) -> None:
        """Store a range durably; a StateError if the scan is over and its folder removed."""
        with state_errors(self.path):
            write_durably(
                self.path / f"{index}.{credential}.{BlobName.of(content).sha256}", content
            )

    def remove(self, credential: str) -> frozenset[int]:
        """Remove a credential's ranges of all scans; the indices of those in this one."""
        removed = [file.index for file in self.files().values() if file.credential == credential]
        for path in self._scans.glob(f"*/*.{credential}.*"):
            path.unlink(missing_ok=True)
        return frozenset(removed)


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

    def task(self, index: int) -> ScoringTask:
        start = index * self.range_examples
        return replace(
            self.whole, start=start, stop=min(start + self.range_examples, self.whole.stop)
        )

    @property
    def max_file_bytes(self) -> int:
        """An upper bound of a range's file: values, a mask bit for each, and a header."""
        specs = range_specs(
            replace(self.whole, start=0, stop=self.range_examples), self.num_features
        )
        return 5 * sum(spec.num_elements for spec in specs.values()) + 2**20


@dataclass(frozen=True)
class Challenge:
    """A question that requires the data to answer: see `data_proof`."""

    nonce: str
    ids: tuple[int, ...]
    proof: str


@dataclass(frozen=True)
class ScanOpened(ScanNews):
    """All ranges except the `present` ones are wanted."""

    scan: Scan
    present: frozenset[int]
    challenge: Challenge


@dataclass(frozen=True)
class RangeDone(ScanNews):
    """The job has computed a range itself."""

    index: int


@dataclass(frozen=True)
class CredentialDistrusted(ScanNews):
    """A credential sent wrong values: its `ranges` are wanted again, from others."""

    credential: str
    ranges: frozenset[int]


@dataclass(frozen=True)
class _Drawn:
    """An example to score again: its id, its credential, and the values that were sent."""

    row: int
    credential: str
    sent: tuple[Tensor, ...]


class ScoreVerification:
    """The drawn examples of one pass, compared with what this process computes."""

    def __init__(self, whole: ScoringTask, score: ScoreIds, *, share: float, exact: bool) -> None:
        """`exact` says that workers compute the same bits as this process."""
        self._whole, self._score, self._share = whole, score, share
        self._floor = min(share, _FEWEST_DRAWN / len(whole))
        self.least_share = share
        # Examples that this process has scored, for verification or for itself.
        self.num_here = 0
        self._exact = exact
        self._tolerance = 0.0 if exact else OTHER_KIND
        self._random = torch.Generator().manual_seed(secrets.randbits(63))
        self._waiting: list[_Drawn] = []
        self.num_verified: Counter[str] = Counter()

    def draw(self, credential: str, start: int, sent: Sequence[Tensor]) -> None:
        """Draw from a range that begins at `start`, with the values of its examples."""
        room = self._whole.batch_size + _SHARE_WAITING * self.num_here
        share = (room - len(self._waiting)) / len(sent[0])
        share = max(self._floor, min(self._share, share))
        self.least_share = min(self.least_share, share)
        drawn = torch.rand(len(sent[0]), generator=self._random) < share
        for row in torch.nonzero(drawn).flatten().tolist():
            # Cloned: the range itself is not kept in memory.
            values = tuple(value[row].clone() for value in sent)
            self._waiting.append(_Drawn(start + row, credential, values))

    def forget(self, credential: str) -> None:
        """Drop a credential that is not used any more."""
        self._waiting = [drawn for drawn in self._waiting if drawn.credential != credential]
        del self.num_verified[credential]

    def check(self, *, everything: bool) -> set[str]:
        """Compare whole batches of drawn examples, or all; credentials with wrong values."""
        size, wrong = self._whole.batch_size, set[str]()
        while len(self._waiting) >= size or (everything and self._waiting):
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            wrong |= self._compare(batch)
        return wrong

    def _compare(self, batch: Sequence[_Drawn]) -> set[str]:
        wrong = set[str]()
        here = self._score(torch.tensor([drawn.row for drawn in batch]))
        self.num_here += len(batch)
        for place, drawn in enumerate(batch):
            self.num_verified[drawn.credential] += 1
            mine = [value[place] for value in here]
            if drawn.credential in wrong or _agree(mine, drawn.sent, self._tolerance):
                continue
            if self._exact and self._is_of_its_batch(drawn):
                self._tolerance = OTHER_PLACE
            else:
                wrong.add(drawn.credential)
        return wrong

    def _is_of_its_batch(self, drawn: _Drawn) -> bool:
        size = self._whole.batch_size
        start = drawn.row // size * size
        stop = min(start + size, self._whole.stop)
        theirs = self._score(torch.arange(start, stop))
        return _agree([value[drawn.row - start] for value in theirs], drawn.sent, 0.0)


def _agree(mine: Iterable[Tensor], sent: Iterable[Tensor], tolerance: float) -> bool:
    pairs = zip(mine, sent, strict=True)
    if not tolerance:
        return all(torch.equal(ours, other) for ours, other in pairs)
    return all(
        torch.allclose(ours.float(), other.float(), rtol=tolerance, atol=tolerance)
        for ours, other in pairs
    )


def scorers_of(scored_by: Mapping[str, Any] | None) -> set[str]:
    """The credentials that `account` names."""
    return {each["credential"] for each in (scored_by or {}).get("credentials", ())}


def scanned(context: Context, model_pass: ModelPass) -> PassResult:
    """The values as of `pass_here`, shared with workers where there are several ranges."""
    alone = context.settings.compute.scoring_workers is ScoringWorkers.NONE
    if alone or len(context.dataset) <= range_examples(context):
        return pass_here(context, model_pass)
    # Otherwise workers cannot read them.
    stored = model_pass.weights or context.blobs.put_bytes(pack(model_pass.model.state_dict()))
    scan = scan_of(context, model_pass, stored)
    return _SharedPass(context, scan, model_pass).run()


def range_examples(context: Context) -> int:
    """The examples of a range: `compute.scoring_range`, rounded up to whole batches."""
    size = context.batch_size
    return -(-context.settings.compute.scoring_range // size) * size


def scan_of(context: Context, model_pass: ModelPass, weights: BlobName) -> Scan:
    """The scan of a pass by a model whose stored blob is `weights`."""
    config, inputs = model_pass.config, model_pass.inputs
    dataset = context.dataset
    specs = stored_specs(model_pass.model, len(dataset), model_pass.values)
    halves = {name for name, spec in specs.items() if spec.dtype == torch.float16}
    _, head = find_head(model_pass.model)
    whole = ScoringTask(
        fingerprint=dataset.fingerprint,
        start=0,
        stop=len(dataset),
        batch_size=context.batch_size,
        threads=config.evaluation_threads,
        values=model_pass.values,
        half_errors=ERRORS in halves,
        half_features=FEATURES in halves,
        quarantined=dataset.quarantined,
        seed=model_seed(config),
        **model_of(config, inputs, dataset.target),
    )
    same = context.settings.compute.scoring_workers is ScoringWorkers.SAME
    versions = versions_on(context.device)
    return Scan(
        whole,
        weights,
        num_features=head.in_features,
        range_examples=range_examples(context),
        kind=kind_of(device_name(context.device), versions) if same else "",
        lipt=versions["lipt"],
    )


class _SharedPass:
    def __init__(self, context: Context, scan: Scan, model_pass: ModelPass) -> None:
        self._context, self._scan, self._activity = context, scan, model_pass.activity
        self._folder = RangeFolder(scans_dir(context.settings.state_dir), scan.scan_id)
        self._score = partial(score_range, model_pass.model, context.dataset, device=context.device)
        self._verification = ScoreVerification(
            scan.whole,
            lambda ids: tuple(self._score(scan.whole, some=ids).values()),
            share=context.settings.compute.verified_share,
            exact=bool(scan.kind),
        )
        specs = range_specs(scan.whole, scan.num_features)
        self._computed = allocated(specs, context.scratch)
        # Scorer of each range in the values, by index.
        self._taken: dict[int, str] = {}
        self._distrusted: set[str] = set()
        self._began = monotonic()

    def run(self) -> PassResult:
        self._folder.open()
        scan_id, present = self._scan.scan_id, frozenset(self._folder.files())
        self._context.send(ScanOpened(scan_id, self._scan, present, self._challenge()))
        while True:
            self._take_sent()
            everything = len(self._taken) == self._scan.num_ranges
            for credential in self._verification.check(everything=everything):
                self._distrust(credential)
            # The last range first: workers begin at the first one.
            missing = max(set(range(self._scan.num_ranges)) - self._taken.keys(), default=None)
            if missing is None:
                break
            self._compute(missing)
        self._context.send(ScanClosed(scan_id))
        shutil.rmtree(self._folder.path, ignore_errors=True)
        return PassResult(self._computed, self._account())

    def _challenge(self) -> Challenge:
        dataset, draw = self._context.dataset, secrets.SystemRandom()
        ids = tuple(draw.sample(range(len(dataset)), min(_PROOF_EXAMPLES, len(dataset))))
        nonce = secrets.token_hex(16)
        return Challenge(nonce, ids, data_proof(dataset, nonce, ids))

    def _compute(self, index: int) -> None:
        num_examples = len(self._scan.whole)
        before = sum(len(self._scan.task(taken)) for taken in self._taken)

        def on_done(done: int) -> None:
            self._context.report(self._activity, before + done, num_examples)

        scored = self._score(self._scan.task(index), on_done=on_done)
        self._folder.keep(index, HERE, encode_range(scored))
        self._take(index, HERE, tuple(scored.values()))
        self._verification.num_here += len(self._scan.task(index))
        self._context.send(RangeDone(self._scan.scan_id, index))

    def _take_sent(self) -> None:
        """Take the ranges that have come in, and draw those of workers for verification."""
        for index, file in self._folder.files().items():
            if index in self._taken:
                continue
            if file.credential in self._distrusted:
                # Otherwise it was removed with another one.
                if file.path.exists():
                    self._distrust(file.credential)
            elif (sent := self._read(file)) is not None:
                self._take(index, file.credential, sent)
                if file.credential != HERE:
                    self._verification.draw(file.credential, self._scan.task(index).start, sent)

    def _take(self, index: int, credential: str, values: Sequence[Tensor]) -> None:
        task = self._scan.task(index)
        for all_N, own_B in zip(self._computed.values(), values, strict=True):
            all_N[task.start : task.stop] = own_B
        self._taken[index] = credential

    def _distrust(self, credential: str) -> None:
        """Score again every range that a credential sent, and take no more of them."""
        self._distrusted.add(credential)
        self._verification.forget(credential)
        ranges = self._folder.remove(credential)
        self._taken = {index: who for index, who in self._taken.items() if who != credential}
        forgotten = forget_scores(self._context.signals_dir, credential)
        logger.warning(
            "%s has sent values that its examples do not have: its %d ranges of this pass are "
            "scored again, %d kept files with its scores are removed, and it gets no more. "
            "Look at its machines, or revoke its token",
            *(credential, len(ranges), forgotten),
        )
        self._context.send(CredentialDistrusted(self._scan.scan_id, credential, ranges))

    def _read(self, file: RangeFile) -> Sequence[Tensor] | None:
        """The values of a file; a damaged file is removed, and gives None."""
        why: object = "it is damaged"
        try:
            if BlobName.of_file(file.path).sha256 == file.sha256:
                task = self._scan.task(file.index)
                return tuple(read_range(file.path, task, self._scan.num_features).values())
        except (LiptError, OSError) as error:
            why = error
        logger.warning("%s cannot be used, its examples are scored again: %s", file.path, why)
        file.path.unlink(missing_ok=True)
        return None

    def _account(self) -> Mapping[str, Any]:
        num_examples: Counter[str] = Counter()
        for index, credential in self._taken.items():
            num_examples[credential] += len(self._scan.task(index))
        num_here, num_verified = num_examples.pop(HERE, 0), self._verification.num_verified
        logger.info(
            "%s of %d examples in %.1f s: of %d ranges, %d by workers of %d credentials; "
            "%d of their %d examples verified",
            *(self._scan.whole.values, len(self._scan.whole), monotonic() - self._began),
            self._scan.num_ranges,
            *(sum(credential != HERE for credential in self._taken.values()), len(num_examples)),
            *(num_verified.total(), num_examples.total()),
        )
        return account(num_here, num_examples, num_verified, self._verification.least_share)


def forget_scores(signals_dir: Path, credential: str) -> int:
    """Remove kept values that a credential contributed to; their number."""
    scored = [path for path in signals_dir.glob("*.safetensors") if credential in _scorers(path)]
    for path in scored:
        path.unlink(missing_ok=True)
    return len(scored)


def _scorers(path: Path) -> AbstractSet[str]:
    try:
        return load_tensors(
            path, lambda _, facts: scorers_of(parse_json(facts["rest"]).get("scored_by"))
        )
    except LiptError:
        return frozenset()  # damaged: its next reader removes it
