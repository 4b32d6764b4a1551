from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from lipt.common.observability.logs import EventKind
from lipt.common.observability.metrics import (
    EVENTS,
    EVERYWHERE,
    Counter,
    Distribution,
    Gauge,
    Histogram,
    Instrument,
    Meters,
    Phases,
)
from lipt.coordinator.instruments import COORDINATOR
from lipt.worker.instruments import WORKER
from tests.clock import Clock

CALLS = Counter("lipt_calls_total", "Calls.", ("peer", "code"), most=2)
TOOK = Histogram("lipt_took_seconds", "Took.", buckets=(1, 2))


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient_threads")
def test_counting_from_many_threads_loses_nothing() -> None:
    meters = Meters()
    begin = threading.Barrier(8)

    def work() -> None:
        begin.wait()
        for _ in range(2000):
            meters.add(CALLS, "a", "OK")
            meters.observe(TOOK, 1.5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meters.sums(CALLS) == {("a", "OK"): 16000.0}
    assert meters.distributions(TOOK) == {(): Distribution((0, 16000, 0), 24000.0)}


def test_values_of_a_label_beyond_the_most_that_are_told_apart_are_other_ones() -> None:
    meters = Meters()
    for peer in ("a", "b", "c", "d", "a"):
        meters.add(CALLS, peer, "OK")
    assert meters.sums(CALLS) == {("a", "OK"): 2, ("b", "OK"): 1, ("other", "OK"): 2}
    # Each label has its own: the codes are two so far.
    meters.add(CALLS, "e", "NOT_FOUND")
    meters.add(CALLS, "e", "INTERNAL")
    assert meters.sums(CALLS)[("other", "NOT_FOUND")] == 1
    assert meters.sums(CALLS)[("other", "other")] == 1


def test_a_value_on_a_bound_is_in_the_bucket_of_that_bound() -> None:
    meters = Meters()
    for value in (0.0, 1.0, 1.0001, 2.0, 3.0):
        meters.observe(TOOK, value)
    (found,) = meters.distributions(TOOK).values()
    assert found.counts == (2, 2, 1)


def test_series_that_are_declared_are_there_before_anything_was_counted() -> None:
    meters = Meters()
    sent = Counter("lipt_sent_total", "Sent.", ("to",), at_zero=(("a",), ("b",)))
    assert meters.sums(sent) == {("a",): 0.0, ("b",): 0.0}
    assert meters.sums(Counter("lipt_plain_total", "Plain.")) == {(): 0.0}
    assert meters.sums(Gauge("lipt_now", "Now.")) == {}
    assert meters.distributions(TOOK) == {(): Distribution((0, 0, 0), 0.0)}
    meters.add(sent, "b")
    assert meters.sums(sent) == {("a",): 0.0, ("b",): 1.0}


def test_labels_that_were_not_declared_are_refused() -> None:
    with pytest.raises(ValueError, match="lipt_calls_total has labels"):
        Meters().add(CALLS, "a")


def test_a_phase_that_lasts_counts_already() -> None:
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


def test_no_name_is_given_twice() -> None:
    names = [instrument.name for instrument in ALL]
    assert len(names) == len(set(names))


def test_declarations_are_all_there_is() -> None:
    from lipt.coordinator import instruments as of_coordinator
    from lipt.worker import instruments as of_worker

    for module, listed in ((of_coordinator, COORDINATOR), (of_worker, WORKER)):
        declared = {value for value in vars(module).values() if isinstance(value, Instrument)}
        assert declared == set(listed)
    assert any(isinstance(instrument, Gauge) for instrument in ALL)


def test_every_kind_of_event_is_at_zero_from_the_start_but_refusals() -> None:
    kinds = {event for event, _ in EVENTS.at_zero}
    assert kinds == {kind.value for kind in EventKind} - {"call_refused"}
