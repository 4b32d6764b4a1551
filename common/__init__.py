"""What at least two of coordinator, worker and trainer share; imports none of the three.

Its rooms, from the top: `data`, `models`; `blobs`, `weights`; `config`; `rpc`; `observability`;
`network`; `images`, `subsets`, `determinism`, `process`, `imports`, and the files `backoff` and
`states`; `errors`. Each imports only from what is below it.
"""
