"""Dispatch: which worker trains which learner or scores which range, and the intake of results.

All of it lives in memory; after a restart it is made anew from the runs' records.
"""
