"""Sources: readers of examples, one format a module; `lipt.data.registry` opens them."""
