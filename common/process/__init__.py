"""Process: how one starts, logs, ends early, waits, and picks its device.

Owns what is set once for a whole process, by its command line; libraries above only ask for
devices and versions.
"""
