"""Arguments of the command line: shared options, settings as NAME=VALUE, files to write.

Imported by the commands. A mistake becomes a usage error before anything has been done.
"""
