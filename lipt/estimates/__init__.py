"""Estimates: what a run and a subset of it will cost on this machine, before anything runs.

Work is counted by pure functions; what a piece of it takes is measured here in a few seconds, on
the caller's own data and model. It needs the worker's part as well as the coordinator's.
"""
