"""The state directory: what was acknowledged survives the end of any process.

lipt.db, lipt.db-wal, lipt.db-shm   runs, learners and subsets (SQLite, WAL)
blobs/ab/<sha256>                   weights, shards, learners, subsets
uploads/<sha256>.part               uploads that were cut
signals/<key>.safetensors           per-example signals, a cache
coordinator.lock                    held by the one process that serves it
"""
