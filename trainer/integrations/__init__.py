"""Integrations: re-selection and resampling in other frameworks' training loops.

`lightning` needs the extra lipt[lightning], `huggingface` the extra lipt[huggingface]. Your own
loop, with or without accelerate, calls `sampler.set_epoch(epoch)` before each epoch instead.
"""
