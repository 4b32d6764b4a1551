from __future__ import annotations

from lipt.common.rpc.messages import message_to_dict
from lipt.v1 import run_pb2


def test_dict_of_a_message_has_what_is_set_and_nothing_else() -> None:
    run = run_pb2.Run(name="x", state=run_pb2.RUN_STATE_READY)
    run.soup.num_kept = 2
    assert message_to_dict(run) == {"name": "x", "state": "ready", "soup": {"num_kept": 2}}
