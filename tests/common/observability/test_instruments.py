from __future__ import annotations

import pytest

from lipt.common.observability.logs import EventKind
from lipt.common.observability.metrics import (
    EVENTS,
    EVERYWHERE,
    Counter,
    Gauge,
    Histogram,
    Instrument,
)
from lipt.coordinator.instruments import COORDINATOR
from lipt.worker.instruments import WORKER

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
