"""Commands of `lipt`, one a file: read the flags, call the library, show what came of it.

Only `lipt.trainer.cli.app` imports them, and at their top they import little more than
typer: what is slow waits until a command runs, so that `--help` answers at once.
"""
