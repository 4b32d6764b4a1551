"""`lipt-coordinator` and `python -m lipt.coordinator`."""

from __future__ import annotations

import os

from lipt.common.process import run_program


def main() -> None:
    # Else gRPC writes a line for each failed handshake, as often as strangers like.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    run_program("lipt-coordinator", "lipt.coordinator.cli")


if __name__ == "__main__":
    main()
