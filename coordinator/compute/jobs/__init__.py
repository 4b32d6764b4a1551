"""Jobs of the compute process: each takes frozen values and stored blobs, and returns values.

Owns how the algorithms of `pretraining`, `signals` and `selection` are fed from the state
directory. A job gives the same however often it runs. Imported by `runs`, `subsets` and `rpc`.
"""
