"""Roles that each call takes, apart from the coordinator's own table."""

from __future__ import annotations

WORKER, TRAINER, ADMIN = {"worker", "admin"}, {"trainer", "admin"}, {"admin"}
ANY = WORKER | TRAINER
EXPECTED = {
    "lipt.v1.AccessService": {
        "CreateToken": ADMIN,
        "ListTokens": ADMIN,
        "OpenPage": TRAINER,
        "RevokeToken": ADMIN,
        "WhoAmI": ANY,
    },
    "lipt.v1.BlobService": {"ReadBlob": ANY, "WriteBlob": ANY, "GetUploadStatus": ANY},
    "lipt.v1.DiagnosisService": {"Diagnose": TRAINER},
    "lipt.v1.InfoService": {"GetInfo": ANY, "WatchService": TRAINER},
    "lipt.v1.RunService": {
        "CreateRun": TRAINER,
        "GetRun": TRAINER,
        "ListRuns": TRAINER,
        "CancelRun": TRAINER,
        "WatchRun": TRAINER,
        "GetWeights": TRAINER,
    },
    "lipt.v1.SubsetService": {"GetSubset": TRAINER, "ListStrategies": TRAINER},
    "lipt.v1.WorkerService": {
        "Register": WORKER,
        "AcquireAssignment": WORKER,
        "Heartbeat": WORKER,
        "CommitResult": WORKER,
        "ReleaseAssignment": WORKER,
        "GetDemand": WORKER,
    },
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ANY},
}
