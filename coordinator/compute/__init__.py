"""The compute queue: everything that takes long, apart from the event loop.

The loop answers heartbeats while a soup or a selection runs: `jobs` are frozen values that
wait in a `lane` of the `queue` for their turn, and are sent to a `process`.
Cheap ones have a second one. Results are frozen values that come back, and big things stay
behind as blobs in the shared state directory. Imported by `runs`, `subsets`, `rpc` and `app`.
"""
