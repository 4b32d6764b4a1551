from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import (
    Counter,
    Gauge,
    Histogram,
    Instrument,
    Meters,
    Readings,
    serving_metrics,
)
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


RUNS = Gauge("lipt_runs", "Runs.", ("state",))
WORKERS = Gauge("lipt_workers", "Workers.")
SENT = Counter("lipt_sent_total", "Sent.", ("to",), at_zero=(("a",), ("b",)))
PLAIN = Counter("lipt_plain_total", "Plain.")
TOOK = Histogram("lipt_took_seconds", "Took.", ("what",), buckets=(0.5, 10))


@contextmanager
def served(
    tls: TlsFiles | None = None,
    *,
    events: Events | None = None,
    meters: Meters | None = None,
    instruments: Sequence[Instrument] = (),
    readings: Callable[[], Readings] = dict,
) -> Iterator[str]:
    with serving_metrics(
        "127.0.0.1:0", tls, events or Events(), meters or Meters(), instruments, readings
    ) as address:
        yield address


def test_events_and_readings_are_as_they_stand_at_the_scrape() -> None:
    events = Events()
    runs = {"ready": 0.0}

    def readings() -> Readings:
        return {RUNS: {(state,): number for state, number in runs.items()}, WORKERS: {(): 2.0}}

    with served(events=events, instruments=(RUNS, WORKERS), readings=readings) as address:
        events.record(EventKind.RETRIED, detail="stage")
        events.record(EventKind.RETRIED, detail="stage")
        runs["ready"] = 3.0
        lines = scrape(f"http://{address}/metrics")
        assert 'lipt_events_total{detail="stage",event="retried"} 2.0' in lines
        assert 'lipt_events_total{detail="failed",event="run_ended"} 0.0' in lines
        assert 'lipt_runs{state="ready"} 3.0' in lines
        assert "lipt_workers 2.0" in lines
        assert [line for line in lines if line.startswith("process_resident_memory_bytes ")]
    with pytest.raises(urllib.error.URLError):
        scrape(f"http://{address}/metrics")


def test_what_was_recorded_is_shown_in_the_text_format_to_the_letter() -> None:
    meters = Meters()
    meters.add(SENT, "a", by=2.5)
    meters.add(SENT, 'c"\n', by=1)
    for seconds in (0.1, 0.5, 9.0, 11.0):
        meters.observe(TOOK, seconds, "soup")
    with served(meters=meters, instruments=(SENT, PLAIN, TOOK, WORKERS)) as address:
        lines = scrape(f"http://{address}/metrics")
    own = lines[lines.index("# HELP lipt_sent_total Sent.") :]
    # A bucket has all that is not above it: 0.1 and 0.5; those and 9; all four.
    assert own == [
        "# HELP lipt_sent_total Sent.",
        "# TYPE lipt_sent_total counter",
        'lipt_sent_total{to="a"} 2.5',
        'lipt_sent_total{to="b"} 0.0',
        r'lipt_sent_total{to="c\"\n"} 1.0',
        "# HELP lipt_plain_total Plain.",
        "# TYPE lipt_plain_total counter",
        "lipt_plain_total 0.0",
        "# HELP lipt_took_seconds Took.",
        "# TYPE lipt_took_seconds histogram",
        'lipt_took_seconds_bucket{le="0.5",what="soup"} 2.0',
        'lipt_took_seconds_bucket{le="10.0",what="soup"} 3.0',
        'lipt_took_seconds_bucket{le="+Inf",what="soup"} 4.0',
        'lipt_took_seconds_count{what="soup"} 4.0',
        'lipt_took_seconds_sum{what="soup"} 20.6',
        "# HELP lipt_workers Workers.",
        "# TYPE lipt_workers gauge",
    ]


def test_the_end_of_the_own_certificate_is_shown_as_a_time(tmp_path: Path) -> None:
    files = write_files(tmp_path / "tls", trustme.CA())
    context = ssl.create_default_context(cafile=files.ca)
    present(context, files)
    with served(files) as address:
        lines = scrape(f"https://{address}/metrics", context)
        end = files.expires_at()
        assert end is not None
        prefix = "lipt_certificate_expiry_timestamp_seconds "
        (shown,) = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert float(shown) == end.timestamp()


def test_with_certificates_it_is_https_and_strangers_are_kept_out(tmp_path: Path) -> None:
    files = write_files(tmp_path / "tls", trustme.CA())
    context = ssl.create_default_context(cafile=files.ca)
    with served(files) as address:
        with pytest.raises(OSError):  # noqa: PT011 - TLS 1.3 shows a missing certificate in many ways
            scrape(f"https://{address}/metrics", context)
        present(context, files)
        assert scrape(f"https://{address}/metrics", context)


def test_certificates_that_change_are_shown_and_asked_for_from_the_next_scrape_on(
    tmp_path: Path,
) -> None:
    old, new = trustme.CA(), trustme.CA()
    files = write_files(tmp_path / "served", old)
    clients = []
    for name, authority in (("old", old), ("new", new)):
        scraper = write_files(tmp_path / name, authority)
        context = ssl.create_default_context(cafile=scraper.ca)
        present(context, scraper)
        clients.append(context)
    with served(files) as address:
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
    files = write_files(tmp_path / "tls", trustme.CA()) if secure else None
    with served(files) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))):
            if files is None:
                assert scrape(f"http://{address}/metrics")
            else:
                context = ssl.create_default_context(cafile=files.ca)
                present(context, files)
                assert scrape(f"https://{address}/metrics", context)


def test_address_that_is_taken_is_refused_by_its_flag() -> None:
    with (
        served() as address,
        pytest.raises(ConfigError, match=f"--metrics-listen {address}"),
        serving_metrics(address, None, Events(), Meters(), (), dict),
    ):
        pass
