"""Who waits for what: parked claims by what their worker can take, heartbeats and readers by topic.

A commit names topics. A class of jobs wakes the first parked worker that could take it, and no other; whoever got one
wakes the next. Lost wake-ups are repaired by a look now and then, so nothing here has to be right for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from runyard.dispatch.fit import is_native, what_it_is
from runyard.server.store.port import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runyard.dispatch.records import JobClass, Worker
    from runyard.server.store.port import Store, Transaction

SLOT_WAKES: Final = 8
CLASSES_KEPT: Final = 4096


class Parked:
    """One claim that waits."""

    __slots__ = ("event", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.event = asyncio.Event()


class Waits:
    """All that wait on one server. To be used on its event loop; `start` once, `stop` once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parked: dict[Parked, None] = {}
        self._topics: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._classes: dict[str, JobClass] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to hear the store."""
        self._end = self._store.listen(self._heard)

    def stop(self) -> None:
        """Hear no more, and let everybody go."""
        self._end()
        for event in [parked.event for parked in self._parked]:
            event.set()
        for events in self._topics.values():
            for event in events:
                event.set()

    @property
    def parked(self) -> int:
        """How many claims wait."""
        return len(self._parked)

    @contextlib.contextmanager
    def park(self, worker: Worker) -> Iterator[Parked]:
        """A claim that waits, from before its last look at the queue."""
        parked = Parked(worker)
        self._parked[parked] = None
        try:
            yield parked
        finally:
            self._parked.pop(parked, None)

    @contextlib.contextmanager
    def listen(self, *topics: str) -> Iterator[asyncio.Event]:
        """An event that is set when one of the topics is named."""
        event = asyncio.Event()
        for topic in topics:
            self._topics[topic].add(event)
        try:
            yield event
        finally:
            for topic in topics:
                self._topics[topic].discard(event)
                if not self._topics[topic]:
                    del self._topics[topic]

    async def repair(self) -> None:
        """Wake for every open class, whatever was heard: level-triggered, for wake-ups that were lost."""
        if self._parked:
            for of in await self._store.transact(_open_classes):
                self._wake(of)

    def again(self, of: JobClass) -> None:
        """One of that class was taken: there may be more, so wake the next who could take it."""
        self._wake(of)

    def _heard(self, topics: frozenset[str]) -> None:
        unknown = False
        for topic in topics:
            for event in self._topics.get(topic, ()):
                event.set()
            if topic == Topic.SLOT:
                for parked in list(self._parked)[:SLOT_WAKES]:
                    parked.event.set()
            elif topic.startswith("class:"):
                of = self._classes.get(topic.removeprefix("class:"))
                if of is None:
                    unknown = True
                else:
                    self._wake(of)
        if unknown and self._parked:
            task = asyncio.create_task(self._learn(topics), name="classes")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learn(self, topics: frozenset[str]) -> None:
        classes = await self._store.transact(_open_classes)
        if len(self._classes) > CLASSES_KEPT:
            self._classes.clear()
        for of in classes:
            self._classes[of.id] = of
            if Topic.of_class(of.id) in topics:
                self._wake(of)

    def _wake(self, of: JobClass) -> None:
        """The first that is native to it, else the first that could emulate it; one that was woken already counts."""
        second: Parked | None = None
        for parked in self._parked:
            if parked.event.is_set() or next(iter(what_it_is(parked.worker, of)), None) is not None:
                continue
            if is_native(parked.worker, of):
                parked.event.set()
                return
            second = second or parked
        if second is not None:
            second.event.set()


def _open_classes(tx: Transaction) -> list[JobClass]:
    return tx.open_classes()
