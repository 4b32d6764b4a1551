"""`lipt-worker` as it was at contract 1.0: run as `python old_worker.py ARGUMENTS`
in a fresh interpreter, as it changes modules before others read them.

It says so when it registers, takes from an assignment only what 1.0 had, and sends
nothing that 1.0 had not: a commit's snapshots came with 1.1, a worker's secret with 1.3.
"""

from __future__ import annotations

from typing import Any

from lipt.common.rpc import protocol

protocol.PROTOCOL_MINOR = 0

from lipt.v1 import config_pb2, worker_pb2  # noqa: E402
from lipt.worker import cli, client  # noqa: E402

_LEARNERS_1_0 = {
    "num_learners",
    "num_minibatches",
    "num_steps",
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "min_learners",
    "deadline_seconds",
    "max_attempts",
    "precision",
    "cpu_threads",
    "encoding",
}


def main() -> None:
    """Run the worker."""
    module: Any = client
    parse, call = module.task_from_proto, module._call

    def parse_1_0(message: worker_pb2.LearnerTask) -> Any:
        for field in config_pb2.LearnersConfig.DESCRIPTOR.fields:
            if field.name not in _LEARNERS_1_0:
                message.learners.ClearField(field.name)
        return parse(message)

    def call_1_0(method: Any, request: Any, timeout_seconds: float) -> Any:
        if isinstance(request, worker_pb2.RegisterRequest):
            assert (request.protocol.major, request.protocol.minor) == (1, 0)
        if isinstance(request, worker_pb2.CommitResultRequest):
            del request.snapshots[:]
        return call(method, request, timeout_seconds)

    module.task_from_proto, module._call = parse_1_0, call_1_0
    module.showing = lambda channel, secret: channel
    cli.main()


if __name__ == "__main__":
    main()
