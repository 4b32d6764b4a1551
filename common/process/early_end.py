"""Early end: a process that is told to stop while it is still starting.

The imports of a service take seconds. A service manager that changes its mind meanwhile
would see a process that died of a signal, or a KeyboardInterrupt's traceback. Imports
nothing heavy itself.
"""

from __future__ import annotations

import os
import signal


def end_at_signals(program: str) -> None:
    """Let SIGTERM and SIGINT end this process with status 0 until other handlers are set.

    At once and without any clean-up: made for a process that has opened nothing yet. An
    exception in its place could be caught by whatever is being imported.
    """

    def end(*_: object) -> None:
        os.write(2, f"{program}: stopped while it was starting\n".encode())
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
