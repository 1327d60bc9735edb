"""Which node a JavaScript action of this job is launched with (job-semantics 9.5): the loader of the image decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.action.node import LOADERS, REMEDY, PlacedNode, choose_node, libc_of_names, wanted_major
from runyard.engine.programs import ask
from runyard.job import Refused

if TYPE_CHECKING:
    from runyard.action.node import Libc
    from runyard.engine.state import Job

_LOOK: Final = "for f in " + " ".join(f"/{folder}/ld-*" for folder in LOADERS) + '; do echo "$f"; done'
_TELL: Final = 'exec "$1" --version'


async def node_for(job: Job, version: str) -> str | Refused:
    """The program for `node20` or `node24`, as the job sees it; looked for once a job.

    First this machine's own that fit, then the image's, unless that is too old.
    """
    if version in job.settings.node:
        return job.settings.node[version]
    chosen = job.programs.nodes
    if version not in chosen:
        chosen[version] = await _choose(job, version)
    return chosen[version]


async def _choose(job: Job, version: str) -> str | Refused:
    refused = Refused(version, "there is none here", REMEDY)
    if job.settings.nodes:
        libc = await _libc(job)
        chosen = choose_node(job.settings.nodes, version, job.settings.nodes[0].arch, libc)
        if isinstance(chosen, PlacedNode):
            return chosen.inside
        if isinstance(chosen, Refused):
            refused = chosen
    path = job.base_environment["PATH"]
    own = await job.programs.first(("node",), path)
    if own is None:
        return refused
    told = await ask(job.session, ("/bin/sh", "-c", _TELL, "sh", own), {"PATH": path})
    major = told.decode("utf-8", "replace").strip().removeprefix("v").partition(".")[0]
    if major.isdigit() and int(major) < wanted_major(version):
        return Refused(version, f"the image's own node is {major}; {refused.because}", refused.remedy)
    return own


async def _libc(job: Job) -> Libc | None:
    """The C library of the image: told by whoever started the job, else by the names of its loaders."""
    if job.settings.libc == "glibc":
        return "glibc"
    if job.settings.libc == "musl":
        return "musl"
    names = await ask(job.session, ("/bin/sh", "-c", _LOOK), {"PATH": job.base_environment["PATH"]})
    return libc_of_names(names.decode("utf-8", "replace").split("\n"))
