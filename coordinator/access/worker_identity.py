"""Worker identity: whether a call under a worker's id comes from that worker.

Worker ids are public, and epochs can be counted. So a call shows the worker's secret `instance_id`
as metadata. The id is a hash of that, so this needs no registration, and works for a lease that
outlived the coordinator. A worker that registered with a certificate shows the same one besides, or
a renewed one of that name.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from lipt.common.access.tokens import MIN_SECRET_CHARACTERS
from lipt.common.errors import InvalidRequestError
from lipt.coordinator.access.caller import ANYBODY, Caller


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Evidence:
    """A call's caller, and its worker's secret, or an empty text."""

    caller: Caller = ANYBODY
    secret: str = field(default="", repr=False)

    def proves(self, worker_id: str) -> bool:
        """Whether the secret is that of the worker."""
        return bool(self.secret) and hmac.compare_digest(worker_id_of(self.secret), worker_id)


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Binding:
    """The evidence of a worker's registration, to be shown again; the secret is hashed."""

    caller: Caller = ANYBODY
    secret_digest: str = field(default=_digest(""), repr=False)

    @classmethod
    def of(cls, shown: Evidence) -> Binding:
        """The binding of a worker that registers with this."""
        return cls(shown.caller, _digest(shown.secret))

    def objection(self, shown: Evidence) -> str:
        """Why a call is not this worker's, as what it does; empty where it is."""
        if not hmac.compare_digest(_digest(shown.secret), self.secret_digest):
            return "does not show the secret of the worker that registered under it"
        bound, now = self.caller, shown.caller
        # With a secret a worker may call from anywhere, but a certificate has to be shown again.
        # Another one of the same name is the same party's, renewed.
        renewed = bool(now.certificate) and bound.name == now.name
        if bound.certificate and bound.certificate != now.certificate and not renewed:
            return f"is of {now.name}, and the worker registered as {bound.name}"
        return ""


UNBOUND = Binding()


def worker_id_of(instance_id: str) -> str:
    """The public id of a worker."""
    return f"w-{_digest(instance_id)[:16]}"


def party_of(caller: Caller, worker_id: str) -> str:
    """The certificate or token that answers for a worker, or else its process.

    Workers of one party do not confirm each other.
    """
    if caller.certificate:
        return caller.name
    return caller.key if caller.only_works else worker_id


def require_unguessable(instance_id: str) -> None:
    """Refuse an instance id that is no secret, without showing it."""
    if len(instance_id) < MIN_SECRET_CHARACTERS:
        raise InvalidRequestError(
            f"instance_id has {len(instance_id)} characters. A worker proves itself by it: draw at "
            f"least {MIN_SECRET_CHARACTERS} hexadecimal digits at random per process."
        )
