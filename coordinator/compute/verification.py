"""Verification: a random share of the examples that workers score is scored here again.

Each example is drawn with the probability `share` after its range has come in, at any
time and from any credential. So n forged examples go unnoticed with a probability of (1 - share)^n.

Many workers bring more than one process can verify. Then the share falls for a while, but never
below 1,000 examples of the whole pass. `least_share` is the lowest one that was used.

On one kind of machine, batches of one size mostly give a row the same bits, whatever the other rows
are. Drawn examples therefore fill batches of the worker's size. A row that differs is scored once
more in the batch that the worker had, which decides. Where that confirms it, its place in a batch
has changed the last bits: from then on only rows beyond a tolerance are scored once more.

Shapes: K drawn examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipt.common.config.tasks import ScoringTask

# Score the examples with these ids: errors and features.
ScoreIds = Callable[[Tensor], Sequence[Tensor]]

# Values from another kind of machine, or from another place in a batch, may differ by this much.
OTHER_KIND, OTHER_PLACE = 2e-3, 1e-4
# The manifest states the probability for this fraction of a credential's examples.
STATED_FRACTION = 0.01
# Examples of a pass that are drawn at least, and how much of this process's work may wait.
_FEWEST_DRAWN, _SHARE_WAITING = 1000, 0.05


def unnoticed(share: float, num_forged: float) -> float:
    """The probability that none of the forged examples is among those drawn."""
    return float((1.0 - share) ** num_forged)


@dataclass(frozen=True)
class _Drawn:
    """An example to score again: its id, its credential, and the values that were sent."""

    row: int
    credential: str
    sent: tuple[Tensor, ...]


class Verification:
    """The drawn examples of one pass, compared with what this process computes."""

    def __init__(self, whole: ScoringTask, score: ScoreIds, *, share: float, exact: bool) -> None:
        """`exact`: workers compute the same bits as this process."""
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
        """Whether the worker's own batch gives the values that it sent, to the bit."""
        size = self._whole.batch_size
        start = drawn.row // size * size
        stop = min(start + size, self._whole.stop)
        theirs = self._score(torch.arange(start, stop))
        return _agree([value[drawn.row - start] for value in theirs], drawn.sent, 0.0)


def _agree(mine: Iterable[Tensor], sent: Iterable[Tensor], tolerance: float) -> bool:
    pairs = zip(mine, sent, strict=True)
    if not tolerance:
        return all(torch.equal(one, other) for one, other in pairs)
    return all(
        torch.allclose(one.float(), other.float(), rtol=tolerance, atol=tolerance)
        for one, other in pairs
    )


def account(
    num_examples: Mapping[str, int], num_verified: Mapping[str, int], share: float
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
    return {"verified_share": share, "credentials": credentials}


def scorers_of(scored_by: Mapping[str, Any] | None) -> set[str]:
    """The credentials that `account` names."""
    return {each["credential"] for each in (scored_by or {}).get("credentials", ())}
