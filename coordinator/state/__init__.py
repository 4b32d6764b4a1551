"""The state directory: acknowledged results survive the end of any process.

lipt.db              runs, learners, subsets, diagnoses and tokens: SQLite, a row per record with
                     its JSON in `body`
lipt.db-wal, -shm    SQLite's write-ahead log and its index
blobs/ab/SHA256      theta*, theta_p, shards, learners with their snapshots, subsets and uploads;
                     a file appears whole and never changes
uploads/PART.part    a partial upload: its SHA256, sender and number
uploads/*.tmp        a blob being written; removed after its process has died
signals/*.safetensors    a cache of per-example signals, which may be deleted
coordinator.lock     locked by the one process that uses the directory
"""
