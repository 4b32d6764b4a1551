"""Parts of a call: how much of a choice or a diagnosis is done, for one bar over all of it.

Learners may prove unneeded, and so may a second head: parts that are left out count as done from
then on. So the total never changes, and what is done never falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from lipt.core.proxies.proxy import MAX_SAMPLE


class CallPart(Enum):
    """A part of a call."""

    FILTERS = auto()
    SAMPLE = auto()
    COPIES = auto()
    LEARNERS = auto()
    TRIALS = auto()
    FEATURES = auto()
    HEAD = auto()
    SECOND_HEAD = auto()
    FINDINGS = auto()
    SELECTION = auto()


# CPU time of a part, relative to features of patches, in which an image takes 0.13 ms. Measured on
# 20,000 images of 28 x 28 pixels and `resnet8`; a table of 10,000 rows has similar ratios.
_OF_EACH = {
    CallPart.COPIES: 0.4,
    CallPart.FEATURES: 1.0,
    CallPart.HEAD: 1.0,
    CallPart.SECOND_HEAD: 1.0,
}
_OF_THE_SAMPLE = {CallPart.SAMPLE: 3.5, CallPart.TRIALS: 4.0}
_FILTERS, _MOST_MIRRORED = 6.0, 1_000
_PASS_OF_TRAINING, _FINDINGS, _SELECTION = 1.5, 1.0, 0.2


class CallParts:
    """The parts of one call, their work, and the share of each that is done.

    jumps: how often parts were left out, after which the speed so far says nothing.
    """

    def __init__(self, work: Mapping[CallPart, float]) -> None:
        self._work, self._done = work, dict.fromkeys(work, 0.0)
        self.jumps = 0

    @classmethod
    def of_choice(cls, num_examples: int, training_passes: float) -> CallParts:
        """The parts of a choice by `auto`; other strategies leave some out."""
        work = _work(num_examples)
        work[CallPart.LEARNERS] = _PASS_OF_TRAINING * training_passes * num_examples
        work[CallPart.SELECTION] = _SELECTION * num_examples
        return cls(work)

    @classmethod
    def of_diagnosis(cls, num_examples: int) -> CallParts:
        """The parts of a diagnosis, which trains nothing."""
        work = _work(num_examples)
        del work[CallPart.SAMPLE]
        work[CallPart.FINDINGS] = _FINDINGS * num_examples
        return cls(work)

    @property
    def share(self) -> float:
        """The share of the call that is done, in [0, 1]; 0 for a call without known parts."""
        left = sum(work * (1.0 - self._done[part]) for part, work in self._work.items())
        return 1.0 - left / sum(self._work.values()) if self._work else 0.0

    def advance(self, part: CallPart, share: float) -> None:
        """Record a part's share; one below that before changes nothing."""
        if part in self._work:
            self._done[part] = max(self._done[part], share)

    def leave_out(self, *parts: CallPart) -> None:
        """Count parts as done; all of them if none is named. The share may jump."""
        self.jumps += 1
        for part in parts or CallPart:
            self.advance(part, 1.0)


def _work(num_examples: int) -> dict[CallPart, float]:
    sample = min(num_examples, MAX_SAMPLE)
    return {
        CallPart.FILTERS: _FILTERS * min(num_examples, _MOST_MIRRORED),
        **{part: work * sample for part, work in _OF_THE_SAMPLE.items()},
        **{part: work * num_examples for part, work in _OF_EACH.items()},
    }
