"""The worker: fetches theta* and a shard, trains and prunes a learner, commits it.

It is a process on each GPU machine, and stores only a cache of initial weights. Imports go from
the pool over the command line, the agent and its assignments to the client.
"""
