"""Text: what a peer wrote, on its way to a log, a terminal or a page.

Owns how it is shown, so that it can neither begin a line of its own nor steer what shows it.
For the log, the command lines and the report.
"""
