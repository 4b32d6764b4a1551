"""The trainer's side: client, subsets, samplers, main training, reports, and the command `lipt`."""
