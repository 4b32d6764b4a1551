"""Fixtures of the tests that break things on purpose; the long ones run in `make test-faults`."""

from collections.abc import Callable

import pytest

Record = Callable[[str], None]
_FIGURE = "figure"


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    return lambda text: record_property(_FIGURE, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Of the reports, which reach this process whichever one the test ran in.
    figures = [
        f"{report.location[2]}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == _FIGURE
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
