"""Dispatch: which worker trains which learner, until when, and what is taken from it.

Owns the workers that are known, the queue of those that wait, the lease table, and the intake
of results. A learner's own state belongs to its run (`lipt.coordinator.runs`); what lives here
is lost at a restart, and made anew from it. Imported by `rpc`, `metrics` and `app`.
"""
