"""The conformance suite on Podman's service, by the same backend as Docker's."""

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
    return images.bash_image(images.podman_socket())


@pytest.mark.parametrize("name", CASES)
def test_podman(name: str, state: str, image: str) -> None:
    run_case(name, lambda: open_engine("podman", state), image)
