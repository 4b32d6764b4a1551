"""Storage: who has stored how much, how much one may, and what is removed while serving.

A blob that a record names is its run's, subset's or diagnosis's. All others were uploaded, count
for who sent them, and expire.
"""
