"""The conformance suite on a real Docker Engine, with the `sh` supervisor in a busybox image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import images
from runyard.sandbox.engine import open_engine
from sandbox.conformance import CASES, run_case

if TYPE_CHECKING:
    from runyard.sandbox.docker import DockerSandbox

pytestmark = [pytest.mark.docker, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def image() -> str:
    images.engine_socket()
    return images.bash_image()


@pytest.fixture(scope="module")
def sandbox(image: str, tmp_path_factory: pytest.TempPathFactory) -> DockerSandbox:
    """One for all cases: an engine is asked what it can do once, and that takes its time."""
    return open_engine("docker", str(tmp_path_factory.mktemp("state")))


@pytest.mark.parametrize("name", CASES)
def test_docker(name: str, sandbox: DockerSandbox, image: str) -> None:
    run_case(name, lambda: sandbox, image)
