"""`python -m lipt.coordinator.state` is `lipt state` where `lipt` is not installed."""

import sys

from lipt.common.errors import LiptError
from lipt.coordinator.state.commands import app

if __name__ == "__main__":
    try:
        app(prog_name="lipt state")
    except LiptError as error:
        sys.exit(f"lipt: {error}")
