"""What a job asks for beside its steps, after it was evaluated and judged: data, so that a job can carry it."""

from __future__ import annotations

import msgspec

from runyard.sandbox.container_wishes import ContainerWishes, RegistryLogin
from runyard.sandbox.contract import ServiceSpec


class JobContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The container that the job's steps run in."""

    image: str
    wishes: ContainerWishes = ContainerWishes()
    login: RegistryLogin | None = None


class JobContainers(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for, judged. False where it asks for nothing."""

    job: JobContainer | None = None
    services: tuple[ServiceSpec, ...] = ()

    def __bool__(self) -> bool:
        return self.job is not None or bool(self.services)
