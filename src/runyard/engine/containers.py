"""A job's own container and its services, as far as they are data: fields evaluated, wishes judged, paths moved.

Everything is judged before anything is pulled, and all that is refused stands in one message (deviation D16; F38).
Fields are evaluated once a job (job-semantics 3.4); what comes of them is started by `engine.initialize`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.engine.evaluate import value_of
from runyard.engine.job_containers import JobContainer, JobContainers
from runyard.engine.layout import Layout
from runyard.expression import to_text
from runyard.job import InputError, MachineError, MappingToken, TextToken
from runyard.sandbox.container_options import Offence, judge, refuse
from runyard.sandbox.container_wishes import ContainerWishes, RegistryLogin
from runyard.sandbox.contract import ServiceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.engine.state import Frame, Job
    from runyard.job import Json, Position, Template

CONTAINER_WORK: Final = "/__w"
CONTAINER_HOME: Final = "/github/home"

_KEYS: Final = frozenset({"image", "credentials", "env", "ports", "volumes", "options"})
_SERVICE_KEYS: Final = _KEYS | {"entrypoint", "command"}
_REFERENCE: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?"
)
_OURS: Final = ("host", "dir", "tar", "oci")
"""What `Shape.image` calls the images that are no engine's: a workflow names engine's images only."""

Place = tuple[str | None, int | None, int | None]
_NOWHERE: Final[Place] = (None, None, None)


class _Asked(msgspec.Struct, kw_only=True):
    """One container as it is read."""

    what: str
    image: str
    wishes: ContainerWishes
    env: dict[str, str]
    login: RegistryLogin | None
    command: tuple[str, ...] | None
    offences: tuple[Offence, ...]
    places: dict[str, Place]


async def containers_of(frame: Frame) -> JobContainers:
    """Evaluate and judge. Raises InputError with everything that is refused, MachineError for the policy's refusals."""
    spec = frame.job.spec
    asked: list[_Asked] = []
    own = await value_of(frame, spec.container)
    if _image_of(own):
        asked.append(_read(frame, "the job's container", own, spec.container, is_job=True))
    services = await value_of(frame, spec.services)
    if services is not None and not isinstance(services, dict):
        raise InputError("'services' is a mapping of containers", code="workflow.services")
    names: list[str] = []
    for name, value in (services or {}).items():
        if not _image_of(value):
            frame.log.say(f"The service '{name}' will not be started because the container definition has no image.")
            continue
        names.append(name)
        asked.append(_read(frame, f"the service {name}", value, _entry(spec.services, name), is_job=False))
    _refuse_all(asked)
    _judge_images(frame.job, asked)
    made = [] if not asked else asked[-len(names) :] if names else []
    return JobContainers(
        job=_job_container(asked[0]) if len(asked) > len(names) else None,
        services=tuple(_service(name, each) for name, each in zip(names, made, strict=True)),
    )


def _job_container(asked: _Asked) -> JobContainer:
    wishes = msgspec.structs.replace(asked.wishes, env={**asked.wishes.env, **asked.env})
    return JobContainer(image=asked.image, wishes=wishes, login=asked.login)


def _service(name: str, asked: _Asked) -> ServiceSpec:
    return ServiceSpec(
        name=name, image=asked.image, wishes=asked.wishes, env=asked.env, command=asked.command, login=asked.login
    )


def _image_of(value: Json) -> Json:
    """The image as it stands there, "" or None where there is to be no container (3.4)."""
    if isinstance(value, dict):
        return _lowered(value).get("image")
    return value


def _lowered(value: Mapping[str, Json]) -> dict[str, Json]:
    return {key.lower(): item for key, item in value.items()}


def _read(frame: Frame, what: str, value: Json, template: Template | None, *, is_job: bool) -> _Asked:
    fields = _lowered(value) if isinstance(value, dict) else {"image": value}
    unknown = sorted(set(fields) - (_KEYS if is_job else _SERVICE_KEYS))
    if unknown:
        raise InputError(f"{what} has no key {', '.join(map(repr, unknown))}", code="workflow.container")
    image = engine_image(to_text(fields["image"]), what)
    wishes, offences = judge(
        options=_text(fields, "options", what),
        volumes=_texts(fields, "volumes", what),
        ports=_texts(fields, "ports", what),
        is_job=is_job,
    )
    command = _text(fields, "command", what)
    entrypoint = _text(fields, "entrypoint", what)
    if entrypoint:
        wishes = msgspec.structs.replace(wishes, entrypoint=(entrypoint,))
    return _Asked(
        what=what,
        image=image,
        wishes=wishes,
        env=_env(fields, what),
        login=_login(frame, fields.get("credentials"), image, what),
        command=_words(command) if command else None,
        offences=offences,
        places={key: _place(frame, _entry(template, key)) for key in ("options", "volumes", "ports")},
    )


def _words(command: str) -> tuple[str, ...]:
    from runyard.engine.scripts import split_arguments

    return split_arguments(command)


def engine_image(reference: str, what: str) -> str:
    """An image of an engine by the name that a workflow gave it. Raises InputError for what is no such name.

    The words that name images of this machine (`host`, `dir:PATH` …) never mean those when a workflow writes them.
    """
    name = reference.removeprefix("docker://")
    word, _, rest = name.partition(":")
    if not _REFERENCE.fullmatch(name) or (word in _OURS and "/" in rest):
        raise InputError(f"{what}: {name!r} is not the name of an image", code="workflow.image")
    return f"docker.io/library/{name}" if word in _OURS else name


def _text(fields: Mapping[str, Json], key: str, what: str) -> str:
    value = fields.get(key)
    if isinstance(value, dict | list):
        raise InputError(f"'{key}' of {what} is a text", code="workflow.container")
    return "" if value is None else to_text(value)


def _texts(fields: Mapping[str, Json], key: str, what: str) -> tuple[str, ...]:
    value = fields.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or any(isinstance(each, dict | list) for each in value):
        raise InputError(f"'{key}' of {what} is a list of texts", code="workflow.container")
    return tuple(to_text(each) for each in value)


def _env(fields: Mapping[str, Json], what: str) -> dict[str, str]:
    value = fields.get("env")
    if value is None:
        value = {}
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise InputError(f"'env' of {what} is a mapping of texts", code="workflow.container")
    found = {name: to_text(each) for name, each in value.items()}
    found.setdefault("GITHUB_ACTIONS", "true")
    found.setdefault("CI", "true")
    return found


def _login(frame: Frame, credentials: Json, image: str, what: str) -> RegistryLogin | None:
    """Who pulls (17.6): what the workflow says, else the actor with the job's token at GitHub's own registry."""
    job = frame.job
    if credentials is not None:
        given = _lowered(credentials) if isinstance(credentials, dict) else {}
        username, password = to_text(given.get("username")), to_text(given.get("password"))
        if not username or not password:
            raise InputError(f"the credentials of {what} need a username and a password", code="workflow.credentials")
        job.masker.add_secret(password)
        return RegistryLogin(username, password)
    host = image.partition("/")[0]
    server = to_text(job.scope.github.get("server_url")).removeprefix("https://").rstrip("/")
    own = (server == "github.com" and host == "ghcr.io") or (
        server.endswith(".ghe.com") and host == f"containers.{server}"
    )
    token, actor = to_text(job.scope.github.get("token")), to_text(job.scope.github.get("actor"))
    return RegistryLogin(actor, token) if own and token and actor else None


def _refuse_all(asked: list[_Asked]) -> None:
    """One message for all containers of the job, at the place of the first offender."""
    told: list[InputError] = []
    for each in asked:
        try:
            refuse(each.what, each.offences, each.places)
        except InputError as refused:
            told.append(refused)
    if len(told) < 2:
        for one in told:
            raise one
        return
    first = told[0]
    raise InputError(
        "\n".join(each.message for each in told),
        path=first.path,
        line=first.line,
        column=first.column,
        key=first.key,
        code=first.code,
        remedy=first.remedy,
    )


def _judge_images(job: Job, asked: list[_Asked]) -> None:
    """Images that were computed are judged like those that stood there as text."""
    from runyard.admission.admit import judge_image

    refused = [found for each in asked if (found := judge_image(each.image, job.claim.policy)) is not None]
    if refused:
        raise MachineError("\n".join(str(each) for each in refused), code="admission.refused")


def _entry(template: Template | None, key: str) -> Template | None:
    if not isinstance(template, MappingToken):
        return None
    named = (entry for entry in template.entries if isinstance(entry.key, TextToken))
    return next((entry.value for entry in named if getattr(entry.key, "value", "").lower() == key.lower()), None)


def _place(frame: Frame, template: Template | None) -> Place:
    at: Position | None = getattr(template, "at", None)
    if at is None:
        return _NOWHERE
    files = frame.files
    path = files[at.file - 1] if 0 < at.file <= len(files) else None
    return (path, at.line, at.column)


def move_into_container(job: Job, frame: Frame) -> None:
    """The paths of a job whose steps run in a container of their own (15, 17.2): contexts and variables follow."""
    name = job.layout.workspace.rpartition("/")[2]
    pipeline = f"{CONTAINER_WORK}/{name}"
    job.layout = Layout(
        pipeline=pipeline,
        workspace=f"{pipeline}/{name}",
        work=CONTAINER_WORK,
        home=CONTAINER_HOME,
        events="/github/workflow",
        tools="/__t",
    )
    job.in_container = True
    for github in (job.scope.github, frame.github):
        github["workspace"] = job.layout.workspace
        github["event_path"] = job.layout.event_path
    job.runner.update(temp=job.layout.temp, tool_cache=job.layout.tool_cache, workspace=job.layout.pipeline)
