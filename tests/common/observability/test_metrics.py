import logging
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from lipt.common.access.tls import TlsFiles
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import (
    EVERYWHERE,
    Counter,
    Gauge,
    Histogram,
    Instrument,
    Meters,
    Phases,
    Readings,
    serving_metrics,
)
from lipt.coordinator.instruments import COORDINATOR
from lipt.worker.instruments import WORKER
from tests.clock import Clock
from tests.meters import sums
from tests.tls_files import write_files


def scrape(url: str, context: ssl.SSLContext | None = None) -> list[str]:
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=30) as answer:
        return answer.read().decode().splitlines()


def context_of(files: TlsFiles) -> ssl.SSLContext:
    assert files.cert is not None
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    return context


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
    ) as url:
        yield url


def test_a_scrape_returns_current_events_and_readings() -> None:
    events = Events()
    runs = {"ready": 0.0}

    def readings() -> Readings:
        return {RUNS: {(state,): number for state, number in runs.items()}, WORKERS: {(): 2.0}}

    with served(events=events, instruments=(RUNS, WORKERS), readings=readings) as url:
        events.record(EventKind.RETRIED, detail="stage")
        events.record(EventKind.RETRIED, detail="stage")
        runs["ready"] = 3.0
        lines = scrape(url)
        assert 'lipt_events_total{detail="stage",event="retried"} 2.0' in lines
        assert 'lipt_events_total{detail="failed",event="run_ended"} 0.0' in lines
        assert 'lipt_runs{state="ready"} 3.0' in lines
        assert "lipt_workers 2.0" in lines
        assert [line for line in lines if line.startswith("process_resident_memory_bytes ")]
    with pytest.raises(urllib.error.URLError):
        scrape(url)


def test_recorded_values_have_the_exact_text_format() -> None:
    meters = Meters()
    meters.add(SENT, "a", by=2.5)
    meters.add(SENT, 'c"\n', by=1)
    for seconds in (0.1, 0.5, 9.0, 11.0):
        meters.observe(TOOK, seconds, "soup")
    with served(meters=meters, instruments=(SENT, PLAIN, TOOK, WORKERS)) as url:
        lines = scrape(url)
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


def test_renewed_certificates_are_used_from_the_next_scrape(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    files = write_files(tmp_path / "served", old)
    clients = [
        context_of(write_files(tmp_path / name, authority))
        for name, authority in (("old", old), ("new", new))
    ]
    with served(files) as url:
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
def test_a_silent_connection_does_not_block_others(tmp_path: Path, secure: bool) -> None:
    files = write_files(tmp_path / "tls", trustme.CA()) if secure else None
    with served(files) as url:
        parts = urllib.parse.urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port)):
            lines = scrape(url, context_of(files) if files else None)
    prefix = "lipt_certificate_expiry_timestamp_seconds "
    ends = [float(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]
    expected = files.expires_at() if files else None
    assert ends == ([expected.timestamp()] if expected else [])
    assert bool(ends) is secure


@pytest.mark.parametrize(
    ("given", "scheme", "needs"),
    [
        ((), "http", "unencrypted; needs no certificate and no token"),
        (
            ("cert", "key"),
            "https",
            "needs no certificate and no token; curl --cacert takes the server's authority",
        ),
        (
            ("cert", "key", "ca"),
            "https",
            "needs a client certificate: curl --cacert {ca} --cert FILE --key FILE",
        ),
        # Such a worker calls by a token, and has nothing to serve with.
        (("ca",), "http", "unencrypted; needs no certificate and no token"),
    ],
)
def test_the_log_has_the_url_and_what_a_scrape_needs(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    given: tuple[str, ...],
    scheme: str,
    needs: str,
) -> None:
    files = write_files(tmp_path, trustme.CA())
    tls = TlsFiles(**{name: getattr(files, name) for name in given}) if given else None
    with caplog.at_level(logging.INFO), served(tls) as url:
        assert url.startswith(f"{scheme}://127.0.0.1:")
    assert f"metrics on {url} ({needs.format(ca=files.ca)})" in caplog.messages


CALLS = Counter("lipt_calls_total", "Calls.", ("peer", "code"), most=2)


def test_label_values_above_the_limit_count_as_other() -> None:
    meters = Meters()
    for peer in ("a", "b", "c", "d", "a"):
        meters.add(CALLS, peer, "OK")
    assert sums(meters, CALLS) == {("a", "OK"): 2, ("b", "OK"): 1, ("other", "OK"): 2}
    # Each label has its own: the codes are two so far.
    meters.add(CALLS, "e", "NOT_FOUND")
    meters.add(CALLS, "e", "INTERNAL")
    assert sums(meters, CALLS)[("other", "NOT_FOUND")] == 1
    assert sums(meters, CALLS)[("other", "other")] == 1


def test_an_open_phase_counts() -> None:
    clock = Clock()
    phases = Phases("waiting", "training", clock=clock)
    clock.now += 2.0
    phases.enter("training")
    clock.now += 3.0
    assert phases.seconds() == {("waiting",): 2.0, ("training",): 3.0}
    clock.now += 1.0
    phases.enter("waiting")
    assert phases.seconds() == {("waiting",): 2.0, ("training",): 4.0}


ALL = (*EVERYWHERE, *COORDINATOR, *WORKER)


@pytest.mark.parametrize("instrument", ALL, ids=lambda instrument: instrument.name)
def test_names_and_units_follow_the_conventions(instrument: Instrument) -> None:
    assert instrument.name.startswith("lipt_")
    assert instrument.name.endswith("_total") == isinstance(instrument, Counter)
    assert instrument.text.endswith(".")
    assert "\n" not in instrument.text
    # Prometheus says these of every series that it scrapes.
    assert not {"job", "instance"} & set(instrument.labels)
    if isinstance(instrument, Histogram):
        assert instrument.name.endswith("_seconds")
        assert list(instrument.buckets) == sorted(set(instrument.buckets))
    if isinstance(instrument, Counter):
        assert {len(labels) for labels in instrument.at_zero} <= {len(instrument.labels)}
