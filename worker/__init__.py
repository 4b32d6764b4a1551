"""The worker: fetches theta* and a shard, trains and prunes a learner, hands it in.

A process of its own on each GPU box. It owns nothing but a cache of initial weights. Imports go
down this list only:

    pool/                 as many workers as there are learners for, here or on Ray
    cli                   the process: command line and signals
    agent                 joins, takes assignments one after the other, gives back
    assignment            a learner, or a range of examples, within this worker's limits
    client                the coordinator's calls, and heartbeats
    instruments           what it measures
    settings              what the process, and a pool, can be told
"""
