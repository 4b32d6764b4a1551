"""The state directory: what was acknowledged survives the end of any process.

lipt.db              the runs, their learners, subsets, diagnoses and the data that was served:
                     SQLite, one row per record with its JSON in `body`; the schema is in
                     `schema`
lipt.db-wal, -shm    SQLite's write-ahead log, with the newest transactions, and its index: they
                     belong to lipt.db and have to be copied with it, if at all
blobs/ab/SHA256      theta*, theta_p, shards, learners with their snapshots, subsets and what
                     trainers uploaded, each under its content's digest; ab are its first two
                     digits. A file appears whole and never changes
uploads/SHA256.part  the beginning of an upload that was cut, to go on from
uploads/*.tmp        a blob that is being written; removed when its process has died
signals/*.safetensors    per-example signals: a cache of the newest four of each kind, which may be
                         deleted
coordinator.lock     locked by the one process that uses the directory, which is named in it

`lipt state check` reads all of it and compares, `lipt state gc` removes what no record needs
(`needs` says what is needed), which a coordinator that serves does by itself
(`lipt.coordinator.storage`), `lipt state backup` copies it while it is served: `maintenance`.
"""
