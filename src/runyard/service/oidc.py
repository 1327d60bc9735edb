"""Identity tokens: a signed statement of what a job is, with the keys that prove it published (runner-v2 16.5).

The key is made once and kept in a file that only its owner reads. A token lives five minutes and is only made for a job
whose permissions have `id-token: write`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.service.asgi import Refusal, send_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    from runyard.service.asgi import Request, Send
    from runyard.service.ports import Clock

LIFE_S: Final = 300.0
DISCOVERY: Final = "/.well-known/openid-configuration"
KEYS: Final = "/.well-known/jwks"
REQUEST: Final = "/oidc/token"
_AUDIENCE: Final = re.compile(r"[\x20-\x7e]{1,1024}\Z")


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an identity token says about a job. `environment` is "" where it has none."""

    repository: str
    repository_id: str = ""
    owner_id: str = ""
    actor: str = ""
    actor_id: str = ""
    ref: str = ""
    ref_type: str = ""
    ref_protected: str = "false"
    base_ref: str = ""
    head_ref: str = ""
    sha: str = ""
    workflow: str = ""
    workflow_ref: str = ""
    workflow_sha: str = ""
    job_workflow_ref: str = ""
    job_workflow_sha: str = ""
    run_id: str = ""
    run_number: str = ""
    run_attempt: str = "1"
    event_name: str = ""
    environment: str = ""
    runner_environment: str = "self-hosted"
    server_url: str = "https://github.com"
    visibility: str = "private"


def subject(facts: JobFacts) -> str:
    """What a token is about: the environment, a pull request, or the ref."""
    if facts.environment:
        return f"repo:{facts.repository}:environment:{facts.environment.replace(':', '%3A')}"
    if facts.event_name in {"pull_request", "pull_request_target"}:
        return f"repo:{facts.repository}:pull_request"
    return f"repo:{facts.repository}:ref:{facts.ref}"


def claims(facts: JobFacts, *, issuer: str, audience: str, now: float, token_id: str) -> dict[str, Any]:
    """The claims of one token. Pure."""
    owner = facts.repository.partition("/")[0]
    described = {
        name: value
        for name, value in msgspec.structs.asdict(facts).items()
        if name not in {"server_url", "visibility", "owner_id", "environment"}
    }
    if facts.environment:
        described["environment"] = facts.environment
    return {
        "jti": token_id,
        "sub": subject(facts),
        "aud": audience or f"{facts.server_url.rstrip('/')}/{owner}",
        "iss": issuer,
        "nbf": int(now - 60),
        "iat": int(now),
        "exp": int(now + LIFE_S),
        "repository_owner": owner,
        "repository_owner_id": facts.owner_id,
        "repository_visibility": facts.visibility,
        **described,
    }


class SigningKey:
    """An RSA key in a file, made when it is first needed. Several processes agree on one."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._key: RSAPrivateKey | None = None

    def get(self) -> RSAPrivateKey:
        """The key. Blocking. Raises ValueError for a file that holds none."""
        if self._key is None:
            from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            if not self._path.exists():
                self._make()
            loaded = load_pem_private_key(self._path.read_bytes(), None)
            if not isinstance(loaded, RSAPrivateKey):
                raise ValueError(f"{self._path} holds no RSA key")
            self._key = loaded
        return self._key

    def _make(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, making = tempfile.mkstemp(prefix=".key-", dir=self._path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # A link and not a rename: of two processes the first one's key stands, and the other reads it.
        with contextlib.suppress(FileExistsError):
            os.link(making, self._path)
        Path(making).unlink()

    def public(self) -> dict[str, str]:
        """The public half as a JSON web key; its id is the thumbprint (RFC 7638)."""
        numbers = self.get().public_key().public_numbers()
        key = {"e": _base64(numbers.e), "kty": "RSA", "n": _base64(numbers.n)}
        thumb = hashlib.sha256(msgspec.json.encode(key, order="deterministic")).digest()
        return {**key, "alg": "RS256", "use": "sig", "kid": base64.urlsafe_b64encode(thumb).decode().rstrip("=")}


class OidcApi:
    """`issuer` is the address below which discovery and keys are found, without a slash at its end."""

    def __init__(self, key: SigningKey, facts: JobFacts | None, issuer: str, clock: Clock) -> None:
        self._key = key
        self._facts = facts
        self._issuer = issuer.rstrip("/")
        self._clock = clock

    async def token(self, request: Request, send: Send) -> None:
        """A token for the job. Refuses a job without the permission."""
        if self._facts is None:
            raise Refusal("permission_denied", "this job has no permission id-token: write")
        audience = request.query.get("audience", "")
        if audience and not _AUDIENCE.match(audience):
            raise Refusal("invalid_argument", "the audience is no printable text of at most 1024 characters")
        import asyncio

        value = await asyncio.to_thread(self._sign, audience)
        await send_json(send, {"count": 1, "value": value})

    def _sign(self, audience: str) -> str:
        import jwt

        assert self._facts is not None
        body = claims(
            self._facts, issuer=self._issuer, audience=audience, now=self._clock(), token_id=os.urandom(16).hex()
        )
        return jwt.encode(body, self._key.get(), algorithm="RS256", headers={"kid": self._key.public()["kid"]})

    async def discovery(self, send: Send) -> None:
        """Where the keys are, and what a token has."""
        await send_json(
            send,
            {
                "issuer": self._issuer,
                "jwks_uri": f"{self._issuer}{KEYS}",
                "subject_types_supported": ["public", "pairwise"],
                "response_types_supported": ["id_token"],
                "claims_supported": ["sub", "aud", "exp", "iat", "iss", "jti", "nbf", *JobFacts.__struct_fields__],
                "id_token_signing_alg_values_supported": ["RS256"],
                "scopes_supported": ["openid"],
            },
        )

    async def keys(self, send: Send) -> None:
        """The key set."""
        import asyncio

        await send_json(send, {"keys": [await asyncio.to_thread(self._key.public)]})


def _base64(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
