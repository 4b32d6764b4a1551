"""Configuration: what a run and a learner's task are made of, and where settings come from.

Owns the validated values, their defaults and descriptions, their messages on the wire, and the
order of file, environment and flags. For everybody above who reads or shows a setting.
"""
