"""The coordinator: holds theta* and the data, leases learners, makes the soup, serves subsets.

Each folder is one thing that it has; imports go down this list only, which `make lint` checks:

    cli, server, app     the process: command line, gRPC server, the parts put together
    rpc/                 servicers: read the request, delegate, answer
    subsets/             subsets on demand: computed once, stored, sent
    dispatch/            learners to workers: leases, queue, intake of results
    runs/                a run's life: store, driver, state transitions, repair
    compute/             the compute queue, its processes and their jobs
    selection/           strategies and their solvers
    diagnosis/           what is the matter with a data set, one file per finding
    proxies/             better features and a better head than theta_p's, to make signals of
    signals/             what strategies look at: errors, features, dynamics
    pretraining/         theta*, shards, evaluation, the soup
    state/               what is on disk: records, database, checks, backups
"""
