"""Planning: what a computation will take, worked out before anything runs.

Owns costs as sums of parts, each with the setting that decides it, and what is said where they
are over a limit. For the coordinator, which refuses such runs, and for workers, which give such
learners back.
"""
