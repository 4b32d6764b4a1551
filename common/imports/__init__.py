"""Imports at run time: optional packages, and factories that a user named.

Owns the rule that nothing is imported for a peer unless this process's flags allow it. For
whoever opens a user's data or model, or needs a package that may be missing.
"""
