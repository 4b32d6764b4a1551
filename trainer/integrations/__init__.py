"""Integrations: re-selection and redrawing in the training loops of other frameworks.

    lightning     pip install 'lipt[lightning]'
    huggingface   pip install 'lipt[huggingface]'

A loop of one's own, with accelerate or without, calls `sampler.set_epoch(epoch)` before each
epoch and needs neither.
"""
