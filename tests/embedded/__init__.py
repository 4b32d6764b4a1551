"""Embedded: the service's own coordinator and workers, in this process or beside it.

A session puts them together and takes them apart; they know nothing of data sets and models but
the names that these have in `lipt.data`.
"""
