"""Re-selection in other people's training loops; each module needs its framework installed.

    lightning     pip install 'lipt[lightning]'
    huggingface   pip install 'lipt[huggingface]'

A loop of one's own, with accelerate or without, calls `sampler.set_epoch(epoch)` before each
epoch and needs neither.
"""
