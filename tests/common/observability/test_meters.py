from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from lipt.common.observability.metrics import (
    Counter,
    Distribution,
    Gauge,
    Histogram,
    Meters,
    Phases,
)
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
