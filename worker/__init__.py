"""The worker: fetches theta* and a shard, trains and prunes a learner, commits it.

It is a process on each GPU machine, and stores only a cache of initial weights. Imports go down
this list only:

    pool/                 as many workers as open learners, here or on Ray
    cli                   the process: command line and signals
    agent                 registers, takes assignments one by one, releases
    assignment            a learner, or a range of examples, within this worker's limits
    client                calls to the coordinator, and heartbeats
    instruments           metrics
    settings              settings of the process and of a pool
"""
