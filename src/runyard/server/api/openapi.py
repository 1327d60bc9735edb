"""The OpenAPI document of the API, made from the routes and the messages, so that it can't say something else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

import runyard
from runyard.job.dialout import ATTEMPT_HEADER, LEASE_HEADER, PREFIX, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.server.api.http import Route


def document(routes: Iterable[Route]) -> bytes:
    """OpenAPI 3.1 as JSON."""
    routes = tuple(routes)
    kinds = [kind for each in routes for kind in (each.takes, each.gives) if kind not in (None, bytes)]
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template="#/components/schemas/{name}")
    by_kind = {str(kind): schema for kind, schema in zip(kinds, schemas, strict=False)}
    problem = {"description": "why not", "content": {"application/json": {"schema": schemas[-1]}}}
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        operation: dict[str, Any] = {
            "summary": each.summary,
            "operationId": f"{each.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', each.path.lower()).strip('_')}",
            "security": [{"token": []}],
            "parameters": _parameters(each),
            "responses": {"default": problem, **_answers(each, by_kind)},
        }
        if each.takes is bytes:
            content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
            operation["requestBody"] = {"required": True, "content": content}
        elif each.takes is not None:
            content = {"application/json": {"schema": by_kind[str(each.takes)]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Runyard", "version": runyard.__version__},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _parameters(each: Route) -> list[dict[str, Any]]:
    text = {"type": "string"}
    named = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"\{(\w+)\}", each.path)
    ]
    named += [{"name": name, "in": "query", "required": False, "schema": text} for name in each.query]
    if each.path.startswith(f"{PREFIX}/jobs/"):
        named += [
            {"name": name, "in": "header", "required": True, "schema": text} for name in (LEASE_HEADER, ATTEMPT_HEADER)
        ]
    return named


def _answers(each: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    if each.gives is None:
        return {"200": {"description": "the bytes"}} if each.method == "GET" else {"204": {"description": "done"}}
    answer = {"description": "the answer", "content": {"application/json": {"schema": by_kind[str(each.gives)]}}}
    answers: dict[str, Any] = {"200": answer}
    if each.method == "POST" and each.path.startswith("/-/api/"):
        answers["201"] = answer
    if each.path.endswith("/claim"):
        answers["204"] = {"description": "no job"}
    return answers
