"""The worker: fetches theta* and a shard, trains and prunes a learner, hands it in.

A process of its own on each GPU box. It owns nothing but a cache of initial weights: what is
acknowledged lies at the coordinator. No other package imports it. Imports go down this list
only, which `make lint` checks:

    pool/                     as many workers as there are learners for, here or on Ray
    cli                       the process: command line, signals, the parts put together
    agent                     joins, takes assignments one after the other, gives back
    assignment                one assignment: fetch, train, upload, commit
    lease, learner            the heartbeats beside a learner; the learner itself
    client, training          the coordinator's calls; SGD over a shard
    augmentation/, pruning/   what training does to images; what is dropped of trained weights
    settings                  what the process can be told
"""
