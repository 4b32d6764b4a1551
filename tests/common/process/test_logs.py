from __future__ import annotations

import io
import logging

import pytest

from lipt.common.observability.logs import PrintableFormatter

HOSTILE = "x\n2026-01-01 INFO all is well\x1b[2J\x9b\u202e"


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")  # noqa: LOG001 - one that nobody else has
    logger.addHandler(handler)
    return logger, written


def test_a_record_is_one_line_whoever_logs_it(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.warning("worker %s has joined", HOSTILE)
    logger.warning(f"worker {HOSTILE} has joined")
    line = r"WARNING worker x\n2026-01-01 INFO all is well\x1b[2J\x9b\u202e has joined"
    assert written.getvalue() == f"{line}\n{line}\n"


def fail() -> None:
    raise ValueError(HOSTILE)


def test_the_text_of_an_error_stays_in_its_traceback(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, written = log
    try:
        fail()
    except ValueError:
        logger.exception("it failed", stack_info=True)
    first, *rest = written.getvalue().splitlines()
    assert first == "ERROR it failed"
    assert rest.pop(0) == "Traceback (most recent call last):"
    assert r"    2026-01-01 INFO all is well\x1b[2J\x9b\u202e" in rest
    assert all(line.startswith(("    ", "Stack (most recent")) for line in rest)
