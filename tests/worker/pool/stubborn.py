"""A program that SIGTERM does not end."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)  # noqa: T201 - who started it waits for that
    while True:
        signal.pause()
