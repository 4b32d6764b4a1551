"""Diagnosis: what is wrong with a data set, as a value; its file, and the tables made of it."""
