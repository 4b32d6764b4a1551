from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.storage.accounts import Quota, free_bytes, resolve_quota


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(300, 150, 512, 32)),
        ({"max_bytes": 80}, Quota(80, 40, 512, 32)),
        ({"max_bytes_per_peer": 30}, Quota(300, 30, 512, 32)),
        ({"max_bytes_per_peer": 900, "max_unfinished": 5}, Quota(300, 300, 5, 5)),
    ],
)
def test_what_is_not_set_follows_the_disk_and_no_peer_may_more_than_all(
    given: dict[str, int], quota: Quota
) -> None:
    assert resolve_quota(StorageSettings.model_validate(given), usable_bytes=900) == quota


def test_free_bytes_are_the_disk_s(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(StateError, match="cannot be used"):
        free_bytes(tmp_path / "nowhere")
