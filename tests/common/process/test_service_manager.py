from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from lipt.common.process.service import tell_manager


@pytest.mark.parametrize("form", ["file", "name"])
def test_manager_is_told_in_one_datagram(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = str(tmp_path / "notify") if form == "file" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(written.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", written)
        tell_manager(READY="1", STATUS="serving 127.0.0.1:50051")
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving 127.0.0.1:50051"


def test_a_manager_that_is_gone_is_said_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    with caplog.at_level(logging.WARNING):
        tell_manager(READY="1")
    assert f"the service manager at {tmp_path / 'absent'} was not told READY=1" in caplog.text
