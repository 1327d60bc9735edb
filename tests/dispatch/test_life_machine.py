"""Any history of one job: workers that claim, beat, die and lie; people that cancel; time that passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch.made import NOW, SECOND, job
from runyard.dispatch.happenings import (
    AttemptEnded,
    Beat,
    Began,
    CancelWanted,
    Claimed,
    Cleared,
    Dropped,
    Ended,
    Extended,
    HandedBack,
    Happening,
    Held,
    Offered,
    Passed,
    Result,
    Step,
    Withdrawn,
)
from runyard.dispatch.life import advance, created
from runyard.dispatch.records import LIVE, Job, Lease, Settings

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SETTINGS = Settings(poison_after=2, poison_total=4)
HOLDS: SearchStrategy[frozenset[str]] = st.sets(st.sampled_from(["approval", "vault"])).map(frozenset)


class Life(RuleBasedStateMachine):
    """`leases` are all that were ever given, the newest last: old holders go on talking."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.job: Job = job()
        self.leases: list[tuple[int, Lease]] = []
        self.ended: list[Ended] = []
        self.closed: list[int] = []
        self.accepted: tuple[int, str] | None = None

    @initialize(holds=HOLDS, retry=st.integers(0, 2))
    def make(self, holds: frozenset[str], retry: int) -> None:
        self.job = created(job(holds=holds, retry_lost=retry), self.now, SETTINGS)

    def tell(self, happening: Happening) -> Step:
        before = self.job
        step = advance(before, happening, self.now, SETTINGS)
        assert advance(before, happening, self.now, SETTINGS) == step
        if step.refused is not None or step.repeated:
            assert (step.job, step.effects) == (before, ())
        assert step.job.attempt >= before.attempt
        if before.phase == "done":
            assert step.job == before, "done is final"
        self.ended += [each for each in step.effects if isinstance(each, Ended)]
        self.closed += [each.number for each in step.effects if isinstance(each, AttemptEnded)]
        self.job = step.job
        return step

    @rule(worker=st.sampled_from(["w1", "w2", "w3"]))
    def claim(self, worker: str) -> None:
        number = len(self.leases) + 1
        until = self.now + 120 * SECOND
        lease = Lease(
            id=f"l{number}", kind="dialout", worker=worker, worker_name=worker, since_ns=self.now, until_ns=until
        )
        was_open = self.job.phase in ("queued", "reserved")
        step = self.tell(Claimed(lease))
        assert (step.refused is None) == was_open
        if was_open:
            self.leases.append((self.job.attempt, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), what=st.sampled_from(["beat", "began", "back", "lost", "result"]))
    def speak(self, data: st.DataObject, what: str) -> None:
        """A holder of now or of before says something; only the newest, with its lease, is heard."""
        attempt, lease = data.draw(st.sampled_from(self.leases))
        digest = data.draw(st.sampled_from(["good", "other"]))
        said: dict[str, Happening] = {
            "beat": Beat(attempt, lease.id, data.draw(st.integers(0, 3))),
            "began": Began(attempt, lease.id),
            "back": HandedBack(attempt, lease.id, "full"),
            "lost": HandedBack(attempt, lease.id, "broken", counted=True),
            "result": Result(attempt, lease.id, digest, "success"),
        }
        holds = self.job.lease is not None and (self.job.attempt, self.job.lease.id) == (attempt, lease.id)
        repeats = what == "result" and self.accepted == (attempt, digest)
        step = self.tell(said[what])
        assert (step.refused is None) == (holds or repeats), step
        assert step.repeated == (repeats and not holds)
        if what == "result" and step.refused is None:
            self.accepted = (attempt, digest)

    @rule(force=st.booleans())
    def cancel(self, *, force: bool) -> None:
        was_done = self.job.phase == "done"
        step = self.tell(CancelWanted("enough", force=force))
        assert (step.refused is not None) == was_done
        assert self.job.phase in ("cancelling", "done")

    @rule(what=st.sampled_from(["clear", "hold", "drop", "offer", "withdraw", "extend"]))
    def people(self, what: str) -> None:
        happenings: dict[str, Happening] = {
            "clear": Cleared("vault" if "vault" in self.job.holds else "approval"),
            "hold": Held("vault"),
            "drop": Dropped("skipped", "no", "condition_false"),
            "offer": Offered("big", self.now + 60 * SECOND),
            "withdraw": Withdrawn("ill"),
            "extend": Extended(self.now + 600 * SECOND),
        }
        self.tell(happenings[what])

    @rule(seconds=st.sampled_from([1, 29, 31, 121, 400]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND
        is_due = 0 < self.job.due_ns <= self.now
        assert (self.tell(Passed()).refused is None) == is_due

    @invariant()
    def holds_together(self) -> None:
        now = self.job
        assert (now.phase in LIVE) == (now.lease is not None)
        assert (now.due_ns > 0) == (now.phase in LIVE or now.phase == "reserved")
        assert (now.phase == "waiting") == bool(now.holds)
        assert (now.phase == "done") == (len(self.ended) == 1), "the end is told once"
        assert now.lost <= now.retry_lost + 1
        assert now.unconfirmed <= SETTINGS.poison_total
        assert now.attempt == len(self.leases)
        open_attempts = set(range(1, now.attempt + 1)) - set(self.closed)
        assert open_attempts == ({now.attempt} if now.phase in LIVE else set()), "each attempt is closed once"
        assert len(self.closed) == len(set(self.closed))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
