import pytest
from google.protobuf.message import Message

from lipt.common.errors import InvalidRequestError
from lipt.common.rpc.messages import message_to_dict, require_lengths
from lipt.v1 import blob_pb2, config_pb2, run_pb2, subset_pb2, worker_pb2

Register = worker_pb2.RegisterRequest


def test_dict_of_a_message_has_what_is_set_and_nothing_else() -> None:
    message = config_pb2.RunConfig(model="x", seed=0)
    message.pruning.method = config_pb2.PRUNING_METHOD_SNIP
    message.learners.frozen.append("all-but-head")
    assert message_to_dict(message) == {
        "model": "x",
        "seed": 0,
        "learners": {"frozen": ["all-but-head"]},
        "pruning": {"method": "snip"},
    }
    # Proto3 does not tell a zero of these from nothing.
    assert message_to_dict(worker_pb2.Lease()) == {
        "epoch": 0,
        "duration_seconds": 0.0,
        "heartbeat_seconds": 0.0,
    }


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Register(name="x" * 81), r"RegisterRequest\.name has 81 characters; at most 80 "),
        (run_pb2.CreateRunRequest(request_id="x" * 101), r"\.request_id has 101 .* most 100 "),
        # Of a field that says nothing, of one in a message in it, of a list, a key and a value.
        (run_pb2.GetRunRequest(run_id="x" * 201), r"GetRunRequest\.run_id has 201 .* at most 200 "),
        (
            run_pb2.CreateRunRequest(config=config_pb2.RunConfig(model="m" * 201)),
            r"RunConfig\.model has 201 characters",
        ),
        (
            worker_pb2.CommitResultRequest(
                snapshots=[blob_pb2.BlobRef(), blob_pb2.BlobRef(sha256="0" * 201)]
            ),
            r"BlobRef\.sha256 has 201 characters",
        ),
        (Register(allowed_modules=["mine", "m" * 201]), r"\.allowed_modules has 201 characters"),
        (Register(allowed_modules=["mine"] * 101), r"_modules has 101 entries; at most 100 are"),
        (Register(versions={"v" * 81: ""}), r"versions has 81 characters"),
        (Register(versions={"": "v" * 81}), r"versions has 81 characters"),
        (Register(versions=dict.fromkeys(map(str, range(21)), "")), r"has 21 entries; at most 20"),
        (
            subset_pb2.GetSubsetRequest(options={"o": "x" * 1001}),
            r"GetSubsetRequest\.options has 1001 characters; at most 1000",
        ),
    ],
)
def test_what_is_too_long_is_refused_by_its_field_its_length_and_the_limit(
    request_: Message, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        require_lengths(request_)


def test_what_is_as_long_as_it_may_be_is_taken() -> None:
    require_lengths(
        Register(
            instance_id="i" * 100,
            name="ü" * 80,  # characters, not bytes
            versions={f"{number:080}": "v" * 80 for number in range(20)},
            allowed_modules=["m" * 200] * 100,
        )
    )
    # What a worker of an older version says of its failure has any length.
    require_lengths(worker_pb2.ReleaseAssignmentRequest(error="e" * 100_000))
    # Lists that are no texts are counted by who reads them, and bytes by the message's limit.
    require_lengths(worker_pb2.CommitResultRequest(snapshots=[blob_pb2.BlobRef()] * 2000))
    require_lengths(blob_pb2.WriteBlobRequest(chunk=blob_pb2.Chunk(data=b"x" * 10_000)))
