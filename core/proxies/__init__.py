"""Proxies: what the signals are computed with, where it is not the merged model and its own head.

A proxy is features (of theta_p, of all learners side by side, of whitened random patches, of the
user's) under a ridge head in closed form, whose outputs are exact leave-one-out: no example is
judged by a head that has learned from it. It owns those features, that head, and the choice
among proxies. The compute jobs, the diagnosis and selection import it; it imports signals.
"""
