"""Job tokens: a JWT that says which job its holder is, and signed addresses that say what one request may do.

A token is worth something at one gateway only: the key never leaves the process that made it, and a verifier takes the
tokens of the job that it was made for and no others (`runner-v2 18.4`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from runyard.service.ports import Clock
    from runyard.service.tenant import Tenant

AUDIENCE: Final = "runyard"
_ISSUER: Final = "runyard"
_HEADER: Final = {"typ": "JWT", "alg": "HS256"}
_SLACK_S: Final = 60.0
URL_LIFE_S: Final = 3600.0


def mint(tenant: Tenant, key: bytes, *, now: float, life_s: float) -> str:
    """The token of one job, good for `life_s` seconds: it has to outlast the job, nobody can renew it.

    Signed here (RFC 7515, HS256): most jobs with an action never call a service, and to import PyJWT, which
    verifies, takes longer than all else that such a job needs.
    """
    scopes = [{"Scope": scope.ref, "Permission": scope.permission} for scope in tenant.scopes]
    claims = {
        "iss": _ISSUER,
        "aud": AUDIENCE,
        "nbf": int(now - _SLACK_S),
        "iat": int(now),
        "exp": int(now + life_s),
        "orch_id": f"{tenant.run_id}.{tenant.job_id}",
        "scp": f"Actions.Results:{tenant.plan_id}:{tenant.job_id}",
        "ac": json.dumps(scopes, separators=(",", ":")),
    }
    signed = b".".join(_part(json.dumps(each, separators=(",", ":")).encode()) for each in (_HEADER, claims))
    seal = _part(hmac.new(key, signed, hashlib.sha256).digest())
    return f"{signed.decode()}.{seal.decode()}"


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class JobTokens:
    """Verifies the tokens of one job: signature, time, audience, and that it is this job's."""

    def __init__(self, tenant: Tenant, key: bytes, clock: Clock) -> None:
        self._tenant = tenant
        self._key = key
        self._clock = clock
        self._scope = f"Actions.Results:{tenant.plan_id}:{tenant.job_id}"

    def verify(self, token: str) -> Tenant | None:
        """See TokenVerifier. The signature is compared in constant time."""
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=["HS256"],
                audience=AUDIENCE,
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "require": ["exp", "nbf", "scp"],
                },
            )
            life = float(claims["nbf"]), float(claims["exp"])
        except (jwt.InvalidTokenError, TypeError, ValueError):
            return None
        if not life[0] <= self._clock() < life[1]:
            return None
        scopes = str(claims["scp"]).split(" ")
        return (
            self._tenant if any(hmac.compare_digest(each.encode(), self._scope.encode()) for each in scopes) else None
        )


class Signer:
    """Addresses that carry their own permission: what they are for, until when, and a seal over both."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = hashlib.sha256(b"signed addresses\0" + key).digest()
        self._clock = clock

    def sign(self, path: str, permission: str, *, life_s: float = URL_LIFE_S) -> str:
        """`path` with its query. `permission` is `r` or `w`; the names of the query are the blob protocol's."""
        until = str(int(self._clock() + life_s))
        return f"{path}?sp={permission}&se={until}&sig={self._seal(path, permission, until)}"

    def allows(self, path: str, query: dict[str, str], permission: str) -> bool:
        """Whether that query was signed for this path and permission and is still good."""
        given, until = query.get("sig", ""), query.get("se", "")
        sealed = hmac.compare_digest(given.encode("utf-8"), self._seal(path, permission, until).encode())
        return sealed and until.isdigit() and self._clock() < int(until)

    def _seal(self, path: str, permission: str, until: str) -> str:
        text = "\0".join((path, permission, until)).encode("utf-8", "surrogatepass")
        return quote(hmac.new(self._key, text, hashlib.sha256).hexdigest())
