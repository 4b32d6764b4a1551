"""Protocol numbers: what both ends of the wire have to agree on."""

from __future__ import annotations

# Peers whose majors differ refuse each other; a higher minor only adds.
# 1: snapshots of learners in CommitResult.
# 2: subsets as differences to the previous one.
# 3: callers have roles, by tokens or certificates, AccessService; a worker proves with every call
#    that it is itself; learners given back because they are over a worker's limits.
# 4: examples that are no images, as columns in a learner's task and in its shard; what is told of
#    them other than classes; learners of which some layers are frozen.
# 5: the service as a whole as a stream, with when learners went out and came in, and the soup as
#    it grows; how many learners there are for workers, in GetDemand.
# 6: subsets as packed examples, and gone on with where a stream broke.
# 7: examples that workers with the data pass through a model for the coordinator.
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 7

# Measured on loopback: 4 MiB messages are slower, 64 KiB ones cost more calls.
CHUNK_BYTES = 256 * 1024
