"""D16: what a workflow may ask of a container, and what it is refused, as one table each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.job import InputError
from runyard.sandbox.container_options import judge, refuse
from runyard.sandbox.container_wishes import ContainerWishes

TAKEN = [
    ("", {}),
    ("--cpus 1.5", {"cpus": 1.5}),
    ("--cpus=2 -m 512m", {"cpus": 2.0, "memory": 512 << 20}),
    ("--memory 1.5g", {"memory": 3 << 29}),
    ("--memory 100", {"memory": 100}),
    ("--shm-size 64k", {"shm_size": 65536}),
    ("--hostname box --user 1001:1002 -w /srv", {"hostname": "box", "user": "1001:1002", "workdir": "/srv"}),
    ("-e A=1 --env B='x y' -eC=", {"env": {"A": "1", "B": "x y", "C": ""}}),
    ("--label team=build", {"labels": {"team": "build"}}),
    ("--name db --network-alias cache", {"aliases": ("db", "cache")}),
    ("--add-host api:192.0.2.1", {"extra_hosts": ("api:192.0.2.1",)}),
    ("--tmpfs /scratch:size=64m,mode=1777", {"tmpfs": {"/scratch": "size=64m,mode=1777"}}),
    ("--init --read-only", {"init": True, "read_only": True}),
    ("--rm -d --cap-drop ALL --security-opt no-new-privileges --restart no", {}),
    ("--pids-limit 100 --ulimit nofile=1024:2048", {"pids": 100, "ulimits": (("nofile", 1024, 2048),)}),
    (
        "-v data:/data --volume cache:/c:ro -v /scratch",
        {"volumes": (("data", "/data", False), ("cache", "/c", True), ("", "/scratch", False))},
    ),
    ("--mount type=volume,src=v,dst=/v,readonly", {"volumes": (("v", "/v", True),)}),
    (
        "-p 8080:80 -p 5432 --publish 127.0.0.1:53:53/tcp",
        {"ports": ((8080, 80, "tcp"), (0, 5432, "tcp"), (53, 53, "tcp"))},
    ),
    (
        '--health-cmd "pg_isready -U x" --health-interval 10s --health-timeout 1m30s --health-retries 5',
        {"health": {"Test": ["CMD-SHELL", "pg_isready -U x"], "Interval": 10**10, "Timeout": 90 * 10**9, "Retries": 5}},
    ),
    ("--no-healthcheck", {"health": {"Test": ["NONE"]}}),
    (
        "--entrypoint /bin/run --pull always --platform linux/arm64",
        {"entrypoint": ("/bin/run",), "pull": "always", "platform": "linux/arm64"},
    ),
    ("--privileged=false", {}),
]


@pytest.mark.parametrize(("text", "expected"), TAKEN, ids=[text or "nothing" for text, _ in TAKEN])
def test_an_option_with_a_meaning_is_taken(text: str, expected: dict[str, object]) -> None:
    wishes, offences = judge(options=text)
    assert offences == ()
    assert wishes == ContainerWishes(**expected)  # type: ignore[arg-type]


REFUSED = [
    ("--privileged", "no_capabilities"),
    ("--cap-add SYS_ADMIN", "no_capabilities"),
    ("--cap-add=NET_ADMIN", "no_capabilities"),
    ("--network host", "egress_none"),
    ("--net=host", "egress_none"),
    ("--network other", "egress_none"),
    ("--pid=host", "no_host_pids"),
    ("--ipc host", "no_host_pids"),
    ("--uts=host", "no_host_pids"),
    ("--userns host", "not_host_root"),
    ("--device /dev/kvm", "no_devices"),
    ("--gpus all", "no_devices"),
    ("-v /var/run/docker.sock:/var/run/docker.sock", "no_engine_socket"),
    ("-v/:/host", "no_host_mounts"),
    ("--volume ./src:/src", "no_host_mounts"),
    ("--volume ~/x:/src", "no_host_mounts"),
    ("--volume ../x:/src", "no_host_mounts"),
    ("--mount type=bind,source=/etc,target=/e", "no_host_mounts"),
    ("--mount type=bind,source=/run/podman/podman.sock,target=/e", "no_engine_socket"),
    ("--volumes-from other", "no_host_mounts"),
    ("--env-file /etc/environment", "no_host_mounts"),
    ("--security-opt seccomp=unconfined", "seccomp"),
    ("--security-opt apparmor=unconfined", "seccomp"),
    ("--sysctl net.ipv4.ip_forward=1", "no_capabilities"),
    ("--cgroup-parent /", "memory_limit"),
    ("--oom-kill-disable", "memory_limit"),
    ("--memory-swap -1", "memory_limit"),
    ("--runtime runc-plain", "seccomp"),
    ("--dns 192.0.2.1", "egress_none"),
    ("-p 192.0.2.1:80:80", "egress_none"),
    ("-P", "egress_none"),
    ("-p 53:53/udp", None),
    ("--restart always", None),
    ("--log-driver syslog", None),
    ("--no-such-option", None),
    ("image", None),
    ("--cpus", None),
    ("--cpus -1", None),
    ("--memory lots", None),
    ("--health-interval soon", None),
    ("--label runyard.owner=me", None),
    ("--add-host h:host-gateway", None),
    ("--tmpfs /x:suid", None),
    ("-v x:/", None),
    ("'unclosed", None),
    ("--ulimit nofile", None),
    ("--pull sometimes", None),
]


@pytest.mark.parametrize(("text", "promise"), REFUSED, ids=[text for text, _ in REFUSED])
def test_d16_an_option_that_breaks_a_promise_or_has_no_effect_is_refused(text: str, promise: str | None) -> None:
    _, offences = judge(options=text)
    assert [offence.promise for offence in offences] == [promise]
    assert offences[0].because


VOLUMES = [
    ("/host:/inside", "no_host_mounts"),
    ("/host:/inside:ro", "no_host_mounts"),
    ("./a:/inside", "no_host_mounts"),
    ("/var/run/docker.sock:/x", "no_engine_socket"),
    ("a:b:c:d", None),
    ("relative", None),
    ("name:/x:rw", None),
    ("x:/", None),
]


@pytest.mark.parametrize(("text", "promise"), VOLUMES, ids=[text for text, _ in VOLUMES])
def test_d16_a_volume_of_the_host_is_refused(text: str, promise: str | None) -> None:
    _, offences = judge(volumes=[text])
    assert [offence.promise for offence in offences] == [promise]


def test_the_grammar_of_volumes_and_ports() -> None:
    wishes, offences = judge(volumes=["a:/a:ro", "b:/b", "/c:ro", "/d"], ports=["80", "8080:80", "6379:6379/tcp"])
    assert offences == ()
    assert wishes.volumes == (("a", "/a", True), ("b", "/b", False), ("", "/c", True), ("", "/d", False))
    assert wishes.ports == ((0, 80, "tcp"), (8080, 80, "tcp"), (6379, 6379, "tcp"))


def test_d16_all_offenders_stand_in_one_message_with_their_places() -> None:
    _, offences = judge(options="--privileged --pid host --cpus 1", volumes=["/etc:/etc"], ports=["1:2:3:4"])
    places = {"options": ("ci.yml", 7, 16), "volumes": ("ci.yml", 9, 11), "ports": ("ci.yml", 11, 11)}
    with pytest.raises(InputError) as caught:
        refuse("the job's container", offences, places)
    told = str(caught.value)
    assert (caught.value.line, caught.value.column, caught.value.exit_code) == (7, 16, 2)
    assert told.count("\n  ") == 4
    for words in (
        "--privileged",
        "no_capabilities",
        "--pid host",
        "no_host_pids",
        "/etc:/etc",
        "no_host_mounts",
        "9:11",
        "1:2:3:4",
    ):
        assert words in told
    assert "--cpus" not in told


def test_nothing_to_refuse_is_quiet() -> None:
    refuse("a container", (), {})


def test_what_speaks_of_a_main_process_is_refused_for_the_jobs_own_container() -> None:
    options = "--entrypoint /run --workdir /x --stop-signal INT --health-cmd true"
    _, offences = judge(options=options, ports=["80:80", "9000:90"], is_job=True)
    assert [offence.words for offence in offences] == [
        "--entrypoint",
        "--workdir",
        "--stop-signal",
        "--health-*",
        "9000:90",
    ]
    assert judge(options=options, ports=["9000:90"])[1] == ()


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="-evpcmhd=:/. 'ab1\\\"", max_size=40), st.lists(st.text(max_size=20), max_size=3))
def test_any_text_is_judged_without_an_exception(text: str, more: list[str]) -> None:
    wishes, offences = judge(options=text, volumes=more, ports=more)
    assert isinstance(wishes, ContainerWishes)
    assert all(str(offence) for offence in offences)
