"""Worker pool: as many `lipt-worker` processes as there are learners for, here or on Ray.

What workers do is between them and the coordinator, so a pool that is killed, or one that loses
half of its machines, costs nothing but time. Imports go down this list only:

    up           `lipt up` and `lipt-worker-pool`
    pool         the loop: what is wanted, what is there, what has ended
    ray_engine   workers as tasks of a Ray cluster
    processes    workers on this machine, which do not outlive who started them
"""
