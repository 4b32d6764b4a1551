"""Fingerprint kind: how closely data was looked at, which a fingerprint's value tells.

    64 hexadecimal digits         sampled
    "full-" and 64 such digits    full

So two of different kinds are never equal, whatever the data.
"""

from __future__ import annotations

from enum import StrEnum

FULL_PREFIX = "full-"


class FingerprintKind(StrEnum):
    """What of the data a fingerprint depends on, besides its length, classes and labels."""

    # The raw bytes of 64 rows.
    SAMPLED = "sampled"
    # Those of every row.
    FULL = "full"

    @classmethod
    def of(cls, fingerprint: str) -> FingerprintKind:
        """The kind of a fingerprint."""
        return cls.FULL if fingerprint.startswith(FULL_PREFIX) else cls.SAMPLED
