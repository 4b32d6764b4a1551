"""Jobs: each reads stored blobs, calls `lipt.core`, and stores the result."""
