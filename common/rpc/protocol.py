"""Protocol numbers: what both ends of the wire have to agree on."""

from __future__ import annotations

# Peers whose majors differ refuse each other; a higher minor only adds.
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

# Measured on loopback: 4 MiB messages are slower, 64 KiB ones cost more calls.
CHUNK_BYTES = 256 * 1024
