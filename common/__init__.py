"""Common parts: what at least two of coordinator, worker and trainer share.

Its rooms, from the top: `data`, `models`; `blobs`, `weights`; `config`; `rpc`; `observability`;
`network`; `images`, `subsets`, `determinism`, `process`, `imports`, and the files `backoff` and
`states`; `errors`. Each imports only from what is below it.
"""
