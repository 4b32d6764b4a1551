"""The compute process: everything that takes long, apart from the event loop.

The loop answers heartbeats while a soup or a selection runs: `jobs` are frozen values that are
sent to one spawned process, results are frozen values that come back, and big things stay
behind as blobs in the shared state directory. Imported by `runs`, `subsets`, `rpc` and `app`.
"""
