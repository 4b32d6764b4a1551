"""Believing: whether what workers have sent of a scan is what its examples have.

One batch of each new worker is computed here as well, drawn by nothing that it could know. Who is
believed once is so for the whole scan: a lie about a few examples may go unnoticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lipt.common.config.tasks import ScoringTask
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.range_folder import RangeFile
from lipt.coordinator.compute.scan import Scan

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
