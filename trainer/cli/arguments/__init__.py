"""What is typed: the options that commands share, settings as NAME=VALUE, and files to write.

Imported by the commands. A mistake becomes a usage error before anything has been done.
"""
