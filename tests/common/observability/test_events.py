from __future__ import annotations

import logging

import pytest

from lipt.common.observability.logs import EventKind, Events


def test_event_is_one_line_of_pairs_and_one_count(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    with caplog.at_level(logging.INFO):
        events.record(
            EventKind.LEASE_EXPIRED, run="run-1", learner=3, worker="", reason="silent for 30 s"
        )
    assert caplog.messages == [
        'event=lease_expired run=run-1 learner=3 reason="silent for 30 s"',
    ]
    assert events.counts() == {(EventKind.LEASE_EXPIRED, ""): 1}


@pytest.mark.parametrize(
    "text",
    ["a\nevent=run_ended", 'quote"d', "tab\there", "a=b", "a b", "a\u2028b", "trailing\n"],
)
def test_a_peer_s_text_cannot_begin_a_line_or_a_pair(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Events().record(EventKind.CALL_REFUSED, reason=text)
    (line,) = caplog.messages
    assert len(line.splitlines()) == 1
    assert line.startswith('event=call_refused reason="')
    assert line.endswith('"')
