import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lipt.common.errors import MissingExtraError
from lipt.worker.pool import up


def test_a_missing_package_of_the_page_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(up.app, ["--page", "--data", "digits", "--model", "resnet8"])
    assert isinstance(done.exception, MissingExtraError)
    assert str(done.exception) == (
        "lipt up --page needs the package 'uvicorn'. "
        "Install it in LiPT's source folder: pip install '.[dashboard]'"
    )


def test_a_configured_address_of_the_page_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("log_level = 'INFO'\n")
    monkeypatch.setattr(up, "_free_port", lambda host: 50080)
    assert up._page_flags("[::1]:0", config) == ["--dashboard-listen", "[::1]:50080"]
    monkeypatch.setenv("LIPT_DASHBOARD_LISTEN", "127.0.0.1:9999")
    assert up._page_flags("127.0.0.1:0", config) == []
    monkeypatch.delenv("LIPT_DASHBOARD_LISTEN")
    config.write_text("dashboard_listen = '127.0.0.1:9999'\n")
    assert up._page_flags("127.0.0.1:0", config) == []
