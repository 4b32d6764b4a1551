"""Connection: one gRPC channel that outlives forks, silences and broken streams.

Imported by the client alone. It knows calls, deadlines and pauses, and nothing of runs or
subsets.
"""
