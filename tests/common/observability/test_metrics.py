from __future__ import annotations

import builtins
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme

from lipt.common.errors import ConfigError, MissingExtraError
from lipt.common.network.tls import TlsFiles
from lipt.common.observability.events import EventKind, Events
from lipt.common.observability.metrics import Gauge, serving_metrics
from tests.tls_files import write_files


def scrape(url: str, context: ssl.SSLContext | None = None) -> list[str]:
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=30) as answer:
        return answer.read().decode().splitlines()


def present(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.cert is not None
    context.load_cert_chain(files.cert, files.key)


def test_events_and_gauges_are_read_as_they_stand_at_the_scrape() -> None:
    pytest.importorskip("prometheus_client")
    events = Events()
    runs = {"ready": 0.0}
    figures = lambda: (Gauge("lipt_runs", "Runs.", "state", dict(runs)),)  # noqa: E731
    with serving_metrics("127.0.0.1:0", None, events, figures) as address:
        events.record(EventKind.RETRIED, detail="stage")
        events.record(EventKind.RETRIED, detail="stage")
        runs["ready"] = 3.0
        lines = scrape(f"http://{address}/metrics")
        assert 'lipt_events_total{detail="stage",event="retried"} 2.0' in lines
        assert 'lipt_runs{state="ready"} 3.0' in lines
    with pytest.raises(urllib.error.URLError):
        scrape(f"http://{address}/metrics")


def test_figure_without_a_label_has_none() -> None:
    pytest.importorskip("prometheus_client")
    figures = lambda: (Gauge("lipt_workers", "Workers.", "", {"": 2.0}),)  # noqa: E731
    with serving_metrics("127.0.0.1:0", None, Events(), figures) as address:
        assert "lipt_workers 2.0" in scrape(f"http://{address}/metrics")


def test_with_certificates_it_is_https_and_strangers_are_kept_out(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    files = write_files(tmp_path / "tls", trustme.CA())
    context = ssl.create_default_context(cafile=files.ca)
    with serving_metrics("127.0.0.1:0", files, Events(), lambda: ()) as address:
        with pytest.raises(OSError):  # noqa: PT011 - TLS 1.3 shows a missing certificate in many ways
            scrape(f"https://{address}/metrics", context)
        present(context, files)
        assert scrape(f"https://{address}/metrics", context)


def test_certificates_that_change_are_shown_and_asked_for_from_the_next_scrape_on(
    tmp_path: Path,
) -> None:
    pytest.importorskip("prometheus_client")
    old, new = trustme.CA(), trustme.CA()
    files = write_files(tmp_path / "served", old)
    clients = []
    for name, authority in (("old", old), ("new", new)):
        scraper = write_files(tmp_path / name, authority)
        context = ssl.create_default_context(cafile=scraper.ca)
        present(context, scraper)
        clients.append(context)
    with serving_metrics("127.0.0.1:0", files, Events(), lambda: ()) as address:
        url = f"https://{address}/metrics"
        assert scrape(url, clients[0])
        assert files.key is not None
        files.key.write_text("half a key")
        assert scrape(url, clients[0])
        write_files(tmp_path / "served", new)
        assert scrape(url, clients[1])
        clients[0].load_verify_locations(files.ca)  # it would believe the server
        with pytest.raises(OSError):  # noqa: PT011 - as above
            scrape(url, clients[0])


@pytest.mark.parametrize("secure", [False, True])
def test_who_connects_and_says_nothing_keeps_no_other_waiting(tmp_path: Path, secure: bool) -> None:
    pytest.importorskip("prometheus_client")
    files = write_files(tmp_path / "tls", trustme.CA()) if secure else None
    with serving_metrics("127.0.0.1:0", files, Events(), lambda: ()) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))):
            if files is None:
                assert scrape(f"http://{address}/metrics")
            else:
                context = ssl.create_default_context(cafile=files.ca)
                present(context, files)
                assert scrape(f"https://{address}/metrics", context)


def test_address_that_is_taken_is_refused_by_its_flag() -> None:
    pytest.importorskip("prometheus_client")
    with (
        serving_metrics("127.0.0.1:0", None, Events(), lambda: ()) as address,
        pytest.raises(ConfigError, match=f"--metrics-listen {address}"),
        serving_metrics(address, None, Events(), lambda: ()),
    ):
        pass


def test_missing_package_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name=name)
        return real(name, *arguments)

    def import_module(name: str) -> Any:
        return without(name)

    monkeypatch.setattr("importlib.import_module", import_module)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'lipt\[metrics\]'"),
        serving_metrics("127.0.0.1:0", None, Events(), lambda: ()),
    ):
        pass
