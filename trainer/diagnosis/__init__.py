"""Diagnosis: what is wrong with a data set, as a value; its file, and the tables made of it.

Imported by the client, which gets one, and by the command and the report, which show it. Needs
no coordinator.
"""
