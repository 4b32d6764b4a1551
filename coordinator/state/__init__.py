"""The state directory: what was acknowledged survives the end of any process.

lipt.db              runs, learners, subsets, diagnoses, tokens and served data: SQLite, a row per
                     record with its JSON in `body` (`schema`)
lipt.db-wal, -shm    SQLite's write-ahead log and its index; they belong to lipt.db
blobs/ab/SHA256      theta*, theta_p, shards, learners with their snapshots, subsets and uploads,
                     each under its digest; a file appears whole and never changes
uploads/SHA256.part  the beginning of an interrupted upload
uploads/*.tmp        a blob being written; removed when its process has died
signals/*.safetensors    a cache of per-example signals, which may be deleted
coordinator.lock     locked by the one process that uses the directory

`lipt state check` verifies it, `lipt state gc` removes what no record needs (`contents`), as a
serving coordinator does by itself (`lipt.coordinator.storage`), `lipt state backup` copies it.
"""
