"""Commands of `lipt`; slow imports wait until a command runs, so that `--help` is quick."""
