from __future__ import annotations

import pytest

from lipt.common.config.fingerprint_kind import FingerprintKind


@pytest.mark.parametrize(
    ("fingerprint", "kind"),
    [
        ("f" * 64, FingerprintKind.SAMPLED),
        ("full-" + "f" * 64, FingerprintKind.FULL),
        ("", FingerprintKind.SAMPLED),
    ],
)
def test_kind_is_told_from_the_value(fingerprint: str, kind: FingerprintKind) -> None:
    assert FingerprintKind.of(fingerprint) is kind
