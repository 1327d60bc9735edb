"""Who is let in, and what is answered to everybody else; tokens, signed addresses, identity tokens."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from runyard.service.oidc import JobFacts, SigningKey, claims, subject
from runyard.service.tokens import JobTokens, Signer, mint
from runyard.service.variables import git_variables, step_variables
from service.clients import ARTIFACT, BASE, CACHE, MAIN, Hands, run, tenant

if TYPE_CHECKING:
    from pathlib import Path

    from service.clients import House

FACTS = JobFacts(
    repository="octo/tools", ref=MAIN, ref_type="branch", sha="1" * 40, run_id="1", event_name="push", actor="octocat"
)


def test_a_token_is_what_the_clients_read() -> None:
    who = tenant("build")
    token = mint(who, b"k" * 32, now=1_900_000_000, life_s=60)
    read = jwt.decode(token, options={"verify_signature": False})
    assert "Actions.Results:plan-1:build" in read["scp"].split(" ")
    assert json.loads(read["ac"]) == [{"Scope": MAIN, "Permission": 3}]
    assert read["exp"] == 1_900_000_060


def test_tokens_of_others_expired_and_forged_ones_are_refused() -> None:
    clock = Hands()
    key, who = b"k" * 32, tenant("build")
    verifier = JobTokens(who, key, clock)
    good = mint(who, key, now=clock.now, life_s=100)
    assert verifier.verify(good) == who
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    for bad in (
        mint(tenant("other"), key, now=clock.now, life_s=100),
        mint(tenant("build", run="2"), key, now=clock.now, life_s=100),
        mint(who, b"x" * 32, now=clock.now, life_s=100),
        mint(who, key, now=clock.now - 200, life_s=100),
        mint(who, key, now=clock.now + 200, life_s=100),
        f"{none}.{good.split('.')[1]}.",
        good[:-4] + "AAAA",
        "",
        "nonsense",
        "ä.ö.ü",
    ):
        assert verifier.verify(bad) is None, bad
    clock.now += 101
    assert verifier.verify(good) is None


def test_a_signed_address_is_for_one_path_one_permission_and_a_while() -> None:
    clock = Hands()
    signer = Signer(b"k" * 32, clock)
    path, _, query = signer.sign("/blobs/a/b/c", "w", life_s=60).partition("?")
    given = dict(part.split("=") for part in query.split("&"))
    assert signer.allows(path, given, "w")
    assert signer.allows(path, {**given, "comp": "block"}, "w"), "the blob clients append their own"
    assert not signer.allows(path, given, "r")
    assert not signer.allows("/blobs/a/b/d", given, "w")
    assert not signer.allows(path, {**given, "se": "9999999999"}, "w")
    assert not signer.allows(path, {**given, "sig": "ä"}, "w")
    assert not signer.allows(path, {}, "w")
    assert not Signer(b"x" * 32, clock).allows(path, given, "w")
    clock.now += 61
    assert not signer.allows(path, given, "w")


def test_the_gateway_refuses_in_json_before_it_looks_at_anything(house: House) -> None:
    async def work() -> None:
        client, other = house.client(), house.client(tenant("other"))
        for path in (f"{CACHE}CreateCacheEntry", f"{ARTIFACT}ListArtifacts", "/_apis/artifactcache/cache", "/nothing"):
            for token, status, code in (("", 401, "unauthenticated"), (other.token, 403, "permission_denied")):
                answer = await client.ask("POST", path, {"key": "k"}, token=token)
                assert (answer.status, answer.json["code"]) == (status, code), path
                assert answer.json["msg"] == answer.json["message"]
        lost = await client.ask("GET", "/nothing")
        assert (lost.status, lost.json["code"]) == (404, "bad_route")
        assert (await client.ask("POST", f"{CACHE}Nothing", {})).status == 404
        assert (await client.ask("GET", f"{CACHE}CreateCacheEntry")).status == 404
        assert (await client.ask("POST", f"{CACHE}CreateCacheEntry", b"{")).json["code"] == "malformed"
        assert (await client.ask("POST", f"{CACHE}CreateCacheEntry", b"[1]")).status == 400
        assert (await client.ask("POST", f"{CACHE}CreateCacheEntry", {"key": 1})).status == 400
        assert (await client.ask("POST", f"{CACHE}CreateCacheEntry", b" " * (2 << 20))).status == 413
        basic = base64.b64encode(f"x-access-token:{client.token}".encode()).decode()
        known = await client.ask("GET", "/", headers={"Authorization": f"Basic {basic}"})
        assert known.json == {"plan": "plan-1", "job": "build"}
        assert client.gateway.counts.requests == 16
        assert client.gateway.counts.refused == 15

    run(work)


@pytest.mark.parametrize(
    "path",
    ["/blobs/caches/upload/x", "/blobs/caches/../../index.db/x", "/blobs/", f"/blobs/caches/{'0' * 64}/AA"],
)
def test_blobs_need_a_signature(house: House, path: str) -> None:
    async def work() -> None:
        client = house.client()
        for method in ("GET", "PUT", "DELETE"):
            assert (await client.ask(method, path, b"x")).status == 403

    run(work)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("&comp=block&blockid=%21%21", b"x"),
        ("&comp=block", b"x"),
        ("&comp=seal", b""),
        ("&comp=blocklist", b"<BlockList><Latest>AAAA</Latest></BlockList>"),
        ("&comp=blocklist", b"<BlockList>"),
        ("&comp=blocklist", b'<!DOCTYPE a [<!ENTITY b "c">]><BlockList><Latest>&b;</Latest></BlockList>'),
    ],
    ids=["no-base64", "no-id", "unknown", "missing-block", "no-xml", "entities"],
)
def test_odd_uploads_are_refused(house: House, query: str, body: bytes) -> None:
    async def work() -> None:
        client = house.client()
        made = await client.twirp("CreateCacheEntry", {"key": "k", "version": "v"})
        answer = await client.ask("PUT", made.json["signed_upload_url"] + query, body)
        assert answer.status == 400, answer

    run(work)


# --- identity


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, f"repo:octo/tools:ref:{MAIN}"),
        ({"event_name": "pull_request"}, "repo:octo/tools:pull_request"),
        ({"environment": "prod:eu", "event_name": "pull_request"}, "repo:octo/tools:environment:prod%3Aeu"),
    ],
    ids=["ref", "pull_request", "environment"],
)
def test_the_subject_of_an_identity(more: dict[str, str], wanted: str) -> None:
    facts = JobFacts(**{"repository": "octo/tools", "ref": MAIN, "event_name": "push", **more})
    assert subject(facts) == wanted
    made = claims(facts, issuer="https://ci.example.test", audience="", now=1000, token_id="t")
    assert made["aud"] == "https://github.com/octo"
    assert made["exp"] - made["iat"] == 300
    assert ("environment" in made) == bool(facts.environment)


def test_an_identity_token_is_proven_by_the_published_keys(house: House) -> None:
    async def work() -> None:
        client = house.client(identity=FACTS)
        variables = step_variables(BASE, client.token, id_token=True)
        url = variables.scripts["ACTIONS_ID_TOKEN_REQUEST_URL"]
        assert "?" in url
        assert (await client.ask("GET", f"{url}&audience=cloud")).status == 401
        answer = await client.ask("GET", f"{url}&audience=https%3A%2F%2Fcloud.example", token=client.token)
        found = await client.ask("GET", f"{BASE}.well-known/openid-configuration")
        keys = await client.ask("GET", found.json["jwks_uri"])
        (key,) = keys.json["keys"]
        assert set(key) == {"kty", "n", "e", "alg", "use", "kid"}
        token = answer.json["value"]
        assert jwt.get_unverified_header(token)["kid"] == key["kid"]
        read: dict[str, Any] = jwt.decode(
            token, jwt.PyJWK(key).key, algorithms=["RS256"], audience="https://cloud.example",
            options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )  # fmt: skip
        assert read["iss"] == found.json["issuer"] == BASE.rstrip("/")
        assert (read["sub"], read["sha"], read["repository_owner"]) == (f"repo:octo/tools:ref:{MAIN}", "1" * 40, "octo")

    run(work)


def test_a_job_without_the_permission_gets_no_identity(house: House) -> None:
    async def work() -> None:
        client = house.client()
        assert (await client.ask("GET", "/oidc/token?a=b")).status == 404
        assert "ACTIONS_ID_TOKEN_REQUEST_URL" not in step_variables(BASE, "t", id_token=False).node

    run(work)


def test_the_signing_key_is_made_once_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "identity.pem"
    first, second = SigningKey(str(path)), SigningKey(str(path))
    assert first.public() == second.public()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["identity.pem"]


# --- variables


def test_which_steps_get_which_variables() -> None:
    made = step_variables(BASE, "t", id_token=True)
    assert set(made.scripts) == {"ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"}
    assert made.node["ACTIONS_CACHE_SERVICE_V2"] == "True"
    assert "ACTIONS_CACHE_SERVICE_V2" not in made.docker
    for kind in (made.node, made.docker):
        assert kind["ACTIONS_RUNTIME_URL"] == kind["ACTIONS_CACHE_URL"] == kind["ACTIONS_RESULTS_URL"] == BASE
        assert kind["ACTIONS_RUNTIME_TOKEN"] == "t"
    assert step_variables(BASE, "t", id_token=False).scripts == {}
    assert "t" not in repr(made).replace("StepVariables", "")
    git = git_variables(BASE, "https://github.com/", "octo/tools", "t")
    assert git["GIT_CONFIG_KEY_0"] == f"url.{BASE}git/octo/tools.insteadOf"
    assert git["GIT_CONFIG_VALUE_0"] == "https://github.com/octo/tools"
