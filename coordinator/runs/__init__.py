"""Runs: each one's life from its request to its soup.

Owns the run store (memory over the database), the driver that carries a run from stage to
stage, the pure state transitions, and the repair of what a disk has damaged. Imported by
`dispatch`, `subsets`, `rpc`, `metrics` and `app`.
"""
