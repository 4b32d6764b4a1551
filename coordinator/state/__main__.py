"""`python -m lipt.coordinator.state` is `lipt state` where `lipt` is not installed."""

from lipt.coordinator.state.commands import app

if __name__ == "__main__":
    app(prog_name="lipt state")
