"""What a worker is told where nobody tells it."""

from __future__ import annotations

import os
import socket

from lipt.worker.settings import WorkerSettings, own_name


def test_workers_of_one_host_have_names_that_differ() -> None:
    assert own_name("box", 7) == "box-7"
    assert own_name("box", 8) == "box-8"
    assert WorkerSettings().name == own_name(socket.gethostname(), os.getpid())


def test_a_long_host_s_name_leaves_room_for_the_number() -> None:
    assert own_name("h" * 100, 4711) == "h" * 75 + "-4711"
