"""Commands of `lipt`: what is slow to import waits until one runs, so that `--help` is quick."""
