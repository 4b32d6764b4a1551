"""Early end: a process that is told to stop while it is still starting.

The imports of a service take seconds. A service manager that changes its mind meanwhile
would see a process that died of a signal, or a KeyboardInterrupt's traceback. Imports
nothing heavy itself.
"""

from __future__ import annotations

import os
import signal


def end_at_signals(program: str, *, status_variable: str = "") -> None:
    """Let SIGTERM and SIGINT end this process with status 0 until other handlers are set.

    At once and without any clean-up: made for a process that has opened nothing yet. An
    exception in its place could be caught by whatever is being imported.

    Args:
        program: what to call it in the line that it says.
        status_variable: environment variable with another status than 0. What is no status in it
            is left to whoever reads the settings.
    """
    told = os.environ.get(status_variable, "")
    status = int(told) if told.isdecimal() and int(told) < 256 else 0

    def end(*_: object) -> None:
        os.write(2, f"{program}: stopped while it was starting\n".encode())
        os._exit(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
