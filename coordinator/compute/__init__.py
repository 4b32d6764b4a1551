"""Everything that takes long, in a process of its own.

The event loop answers heartbeats while a soup or a selection runs: jobs are
frozen values sent to one spawned process, results are frozen values sent back,
and big things stay behind as blobs in the shared state directory.
"""
