"""Worker pool: as many `lipt-worker` processes as there are learners for, here or on Ray.

It starts plain workers and lets them go; what they do is between them and the coordinator, so a
pool that is killed, or one that loses half of its machines, costs nothing but time. Imports go
down this list only:

    up, cli                   `lipt up` and `lipt-worker-pool`
    opening                   settings made into a pool that runs until it is told to stop
    pool                      the loop: what is wanted, what is there, what has ended
    processes, ray_engine     where workers run: on this machine, or where Ray places them
    ray_task                  what Ray runs on a node: one worker, from its start to its end
    children                  one worker as a process that does not outlive who started it
    demand                    what the coordinator says that there is to do
    engine, scaling, settings what an engine is; how many workers there should be; what can be told
"""
