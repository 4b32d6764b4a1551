"""Diagnosis: what is the matter with a data set, before anything is chosen from it.

Labels that look wrong and how many there may be, pictures that are there twice, classes that
are rare or confused, examples far from everything, and what a fraction of the data would do.
One file per finding, each a plain function of the signals of a proxy that never saw the
example that it judges. Strategies may leave out what is found; nothing here chooses.
"""
