"""What a machine offers a job: labels, images, backends and networks, never weaker in silence."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.cli import run_machine
from runyard.cli.run_actions import cache_folder
from runyard.cli.run_jobs import needs_tree
from runyard.cli.run_machine import Machine, Place, Unserved, choose_network, needs_engine, parse_images
from runyard.cli.run_offer import Offers
from runyard.cli.run_prepare import Options
from runyard.job import (
    ActionStep,
    ContainerActionStep,
    InputError,
    JobSpec,
    MachineError,
    MappingToken,
    Refused,
    RunStep,
    TextToken,
)
from runyard.sandbox.contract import Capabilities


def spec(**more: Any) -> JobSpec:
    labels = tuple(more.pop("labels", ("ubuntu-latest",)))
    return JobSpec(id="i", run_id="1", key="j", job="j", name="j", labels=labels, **{"steps": (), **more})


@pytest.fixture(autouse=True)
def _a_usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_machine, "this_platform", lambda: "linux/amd64")


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        (["ubuntu-latest"], Place("host", "ubuntu-latest")),
        (["Ubuntu-22.04"], Place("host", "Ubuntu-22.04")),
        (["self-hosted", "linux", "X64"], Place("host")),
        (["GPU"], Place("host")),
        (["big"], Place("oci:/images/big")),
        (["self-hosted", "big"], Place("oci:/images/big")),
        ([], Place("host")),
    ],
)
def test_where_labels_lead(labels: list[str], place: Place) -> None:
    assert Machine({"BIG": "oci:/images/big"}, ["gpu"]).place(spec(labels=labels)) == place


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (spec(labels=["windows-2022"], platform="windows/amd64"), "needs windows/amd64, not available here"),
        (spec(labels=["macos-14"], platform="darwin/arm64"), "needs macos, not available here"),
        (spec(labels=["ubuntu-24.04-arm"], platform="linux/arm64"), "needs linux/arm64, not available here"),
        (spec(labels=["nowhere"]), "no label 'nowhere' (--label nowhere, or --image nowhere=host)"),
    ],
)
def test_F60_what_a_machine_cannot_serve(job: JobSpec, reason: str) -> None:
    found = Machine({}, []).place(job)
    assert isinstance(found, Unserved)
    assert reason in found.reason


def test_D20_windows_and_macos_are_never_mapped_by_themselves() -> None:
    job = spec(labels=["windows-latest"], platform="windows/amd64")
    assert isinstance(Machine({}, ["windows-latest"]).place(job), Unserved)
    assert Machine({"windows-latest": "image"}, []).place(job) == Place("image")


@pytest.mark.parametrize(
    ("job", "image", "needs"),
    [
        (spec(), "host", None),
        (spec(), "tar:/x.tar", None),
        (spec(), "debian:12", "the image debian:12"),
        (spec(container=TextToken("debian")), "host", "its container"),
        (spec(services=MappingToken()), "host", "its services"),
        (spec(steps=(ContainerActionStep(id="a", number=1, image="x"),)), "host", "a step with docker://"),
    ],
)
def test_what_needs_an_engine(job: JobSpec, image: str, needs: str | None) -> None:
    assert needs_engine(job, image) == needs


def capabilities(*refused: str) -> Capabilities:
    return Capabilities(
        backend="bubblewrap",
        supervisor="enter",
        refused={name: Refused(name, "the helper is missing", "apt-get install helper") for name in refused},
    )


def test_the_default_network_is_public_or_said() -> None:
    assert choose_network(None, capabilities()) == ("public", None)
    level, line = choose_network(None, capabilities("egress_public"))
    assert level == "proxy"
    assert line is not None
    assert "\n" not in line
    assert "apt-get install helper" in line
    level, line = choose_network(None, capabilities("egress_public", "egress_proxy"))
    assert level == "none"
    assert line is not None


@pytest.mark.parametrize("level", ["none", "proxy", "public"])
def test_a_network_that_is_asked_for_is_given_or_refused(level: str) -> None:
    assert choose_network(level, capabilities()) == (level, None)
    with pytest.raises(MachineError, match=f"network {level} can't be kept here: the helper is missing"):
        choose_network(level, capabilities(f"egress_{level}"))


def test_images_are_pairs() -> None:
    assert parse_images(["a=host", "b=dir:/x=y"]) == {"a": "host", "b": "dir:/x=y"}
    for wrong in ("a", "=x", "a=", "a=dir:"):
        with pytest.raises(InputError):
            parse_images([wrong])


class _Offers(Offers):
    """Backends of an imagined machine."""

    def __init__(self, options: Options, *here: str) -> None:
        super().__init__(options)
        self.here = here
        self.asked: list[str] = []

    def _capabilities(self, name: str) -> Capabilities:
        self.asked.append(name)
        if name not in self.here:
            raise MachineError(f"no {name} here", remedy=f"install {name}")
        return capabilities()


def test_auto_takes_the_engine_only_where_a_job_needs_it() -> None:
    offers = _Offers(Options(), "bubblewrap", "docker")
    assert offers.backend_for(spec(), "host").name == "bubblewrap"
    assert offers.asked == ["bubblewrap"], "no engine is asked before a job needs one"
    assert offers.backend_for(spec(), "host").name == "bubblewrap"
    assert offers.asked == ["bubblewrap"], "a backend is asked once"
    assert offers.backend_for(spec(container=TextToken("x")), "host").name == "docker"
    podman = _Offers(Options(), "bubblewrap", "podman")
    assert podman.backend_for(spec(container=TextToken("x")), "host").name == "podman"


def test_auto_never_falls_back_to_something_else() -> None:
    offers = _Offers(Options(), "bubblewrap")
    with pytest.raises(MachineError, match="its container needs a container engine: no docker here") as raised:
        offers.backend_for(spec(container=TextToken("x")), "host")
    assert raised.value.remedy == "install docker"
    with pytest.raises(MachineError, match="no bubblewrap here"):
        _Offers(Options(), "docker").backend_for(spec(), "host")
    named = _Offers(Options(sandbox="bubblewrap"), "bubblewrap", "docker")
    with pytest.raises(MachineError, match="bubblewrap can't do its container"):
        named.backend_for(spec(container=TextToken("x")), "host")


def test_a_tree_is_made_only_for_jobs_that_may_check_out() -> None:
    script = RunStep(id="__run", number=1, script=TextToken("x"))
    assert not needs_tree(spec(steps=(script,)))
    assert needs_tree(spec(steps=(script, ActionStep(id="c", number=2, repository="actions/checkout", ref="v4"))))


def test_the_cache_is_the_users_or_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder(None) == "/somewhere/runyard"
    assert cache_folder("/mine") == "/mine"


def test_options_show_no_secret() -> None:
    assert "hush" not in repr(Options(secrets={"A": "hush"}))
