"""Fingerprint kind: how much of the data a fingerprint covers.

A full one begins with "full-", so that two kinds are never equal.
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
