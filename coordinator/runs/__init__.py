"""Runs: store, driver, state transitions, requests, repair of damaged files, held runs."""
