from __future__ import annotations

from contextlib import ExitStack

import pytest

from lipt.common.errors import TooManyCallsError
from lipt.coordinator.page.open_streams import MAX_LIVE_STREAMS, OpenStreams


def test_a_session_has_so_many_streams_and_another_its_own() -> None:
    streams = OpenStreams()
    with ExitStack() as stack:
        for _ in range(MAX_LIVE_STREAMS):
            streams.require_room("one")
            stack.enter_context(streams.one_more("one"))
        with pytest.raises(TooManyCallsError, match="Close another tab"):
            streams.require_room("one")
        streams.require_room("another")
    streams.require_room("one")
