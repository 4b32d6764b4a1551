"""The contract `lipt.v1`: generated from the .proto files beside this one."""
