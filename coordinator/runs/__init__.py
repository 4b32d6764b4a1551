"""Runs: each one's life from its request to its soup.

Owns the run store (memory over the database; of runs that have ended memory has summaries), the
driver that carries a run from stage to stage, the pure state transitions, the repair of what a
disk has damaged, and the holding of runs whose own data is not there. Imported by `dispatch`,
`subsets`, `rpc`, `metrics` and `app`.
"""
