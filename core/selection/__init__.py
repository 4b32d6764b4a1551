"""Selection: a strategy, signals and a budget become a subset.

It owns the strategies and the one way to apply them: budgets, class quotas, options, checks
of what a strategy needs and answers. The compute jobs and the service's listings import
`select`, `registry` and `strategy`; within, registry and select stand on strategies, those on
solvers, those on gradients. It imports signals and what is below.
"""
