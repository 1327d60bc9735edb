"""The conformance suite on a real Docker Engine, with the `sh` supervisor in a busybox image."""

from __future__ import annotations

import pytest

import images
from runyard.sandbox.engine import open_engine
from sandbox.conformance import CASES, run_case

pytestmark = [pytest.mark.docker, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def image() -> str:
    images.engine_socket()
    return images.bash_image()


@pytest.mark.parametrize("name", CASES)
def test_docker(name: str, state: str, image: str) -> None:
    run_case(name, lambda: open_engine("docker", state), image)
