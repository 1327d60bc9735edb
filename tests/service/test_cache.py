"""Caches over both protocols: lookup order, scopes, immutability, room, and never half of one (F22)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from runyard.service.asgi import Refusal
from runyard.service.cache_rules import Entry, check_keys, choose, to_evict
from runyard.service.tenant import READ, WRITE, Scope, scopes_of
from service.clients import MAIN, run, tenant

if TYPE_CHECKING:
    from service.clients import House

TOPIC = "refs/heads/topic"


def entry(number: int, key: str, *, scope: str = MAIN, version: str = "v", size: int = 1, used: float = 0) -> Entry:
    return Entry(
        id=number, scope=scope, key=key, version=version, digest="0" * 64, size=size, created=float(number), used=used
    )


# --- the rules


@pytest.mark.parametrize(
    ("key", "restore", "scopes", "wanted"),
    [
        pytest.param("npm-2", ["npm-"], [MAIN], "npm-2", id="exact"),
        pytest.param("npm-9", ["npm-"], [MAIN], "npm-3", id="prefix-newest"),
        pytest.param("npm-9", ["yarn-", "npm-"], [MAIN], "npm-3", id="second-prefix"),
        pytest.param("npm-9", ["pip-", "npm-"], [MAIN], "pip-1", id="prefixes-in-order"),
        pytest.param("npm-", [], [MAIN], None, id="a-key-is-no-prefix"),
        pytest.param("npm-2", ["npm-"], [TOPIC, MAIN], "npm-topic", id="own-scope-before-an-exact-hit-elsewhere"),
        pytest.param("npm-2", [], [TOPIC, MAIN], "npm-2", id="default-branch"),
        pytest.param("npm-2", [], [TOPIC], None, id="another-scope-is-not-seen"),
        pytest.param("npm-9", [""], [MAIN], None, id="an-empty-prefix-matches-nothing"),
    ],
)
def test_a_lookup_goes_scope_by_scope(key: str, restore: list[str], scopes: list[str], wanted: str | None) -> None:
    entries = [
        entry(1, "npm-1"),
        entry(2, "npm-2"),
        entry(3, "npm-3"),
        entry(4, "pip-1"),
        entry(5, "npm-topic", scope=TOPIC),
        entry(6, "npm-9", version="other"),
    ]
    found = choose(entries, scopes, key, restore, "v")
    assert (found.key if found else None) == wanted


@pytest.mark.parametrize(
    "keys",
    [[], [""], ["a,b"], ["k" * 513], [f"k{n}" for n in range(11)]],
    ids=["none", "empty", "comma", "long", "many"],
)
def test_bad_keys_are_refused(keys: list[str]) -> None:
    with pytest.raises(Refusal) as caught:
        check_keys(keys)
    assert caught.value.status == 400
    check_keys(["k" * 512, *(f"k{n}" for n in range(9))])


def test_room_is_made_by_the_least_recently_used() -> None:
    entries = [entry(n, f"k{n}", size=10, used=used) for n, used in enumerate([50.0, 10.0, 30.0, 990.0])]
    assert [each.key for each in to_evict(entries, 25, 1000)] == ["k1", "k2"]
    assert not to_evict(entries, 40, 1000)
    assert [each.key for each in to_evict(entries, 0, 1000)] == ["k1", "k2", "k0"], "what is being read stays"


def test_scopes_of_a_job() -> None:
    assert scopes_of("refs/pull/7/merge", base_ref="dev", default_branch="main") == (
        Scope("refs/pull/7/merge", READ | WRITE),
        Scope("refs/heads/dev", READ),
        Scope(MAIN, READ),
    )
    assert scopes_of(MAIN, default_branch="main") == (Scope(MAIN, READ | WRITE),)
    assert scopes_of(TOPIC, default_branch="main", trusted=False) == (Scope(TOPIC, READ | WRITE),)


# --- version 2


def test_save_and_restore(house: House) -> None:
    async def work() -> None:
        client = house.client()
        assert await client.restore("k", "k-") is None
        house.clock.now += 30
        done = await client.save("k", b"content")
        assert done.json["ok"]
        assert done.json["entry_id"].isdigit()
        assert await client.restore("k") == ("k", b"content")
        assert await client.restore("k", version="w") is None
        counts = client.services.caches.counts
        assert (counts.lookups, counts.hits, counts.saves, counts.saved_s) == (3, 1, 1, 30.0)
        assert client.services.notes() == (("Cache: 1 of 3 lookups hit, about 30 s saved", False),)

    run(work)


def test_a_large_cache_comes_in_blocks_and_in_the_order_of_its_list(house: House) -> None:
    async def work() -> None:
        client = house.client()
        made = await client.twirp("CreateCacheEntry", {"key": "big", "version": "v"})
        url = made.json["signed_upload_url"]
        parts = {f"{n:04d}": bytes([n]) * 2_500_000 for n in range(4)}
        await asyncio.gather(
            *(client.ask("PUT", f"{url}&comp=block&blockid={name}", data) for name, data in reversed(parts.items()))
        )
        names = "".join(f"<Latest>{name}</Latest>" for name in parts)
        await client.ask("PUT", f"{url}&comp=blocklist", f"<BlockList>{names}</BlockList>".encode())
        done = await client.twirp("FinalizeCacheEntryUpload", {"key": "big", "version": "v", "sizeBytes": 10_000_000})
        assert done.json["ok"], done
        assert await client.restore("big") == ("big", b"".join(parts.values()))

    run(work)


def test_a_range_of_a_cache_can_be_read(house: House) -> None:
    async def work() -> None:
        client = house.client()
        await client.save("k", b"0123456789")
        found = await client.twirp("GetCacheEntryDownloadURL", {"key": "k", "version": "v"})
        got = await client.ask("GET", found.json["signed_download_url"], headers={"Range": "bytes=2-4"})
        assert (got.status, got.body, got.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
        head = await client.ask("HEAD", found.json["signed_download_url"])
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "10")

    run(work)


def test_F22a_what_was_begun_and_left_is_not_found_and_holds_nobody_up(house: House) -> None:
    async def work() -> None:
        gone, other = house.client(tenant("gone")), house.client(tenant("other"))
        made = await gone.twirp("CreateCacheEntry", {"key": "k", "version": "v"})
        await gone.ask("PUT", f"{made.json['signed_upload_url']}&comp=block&blockid=AAAA", b"first of three")
        assert await other.restore("k", "k") is None
        assert (await other.save("k", b"whole")).json["ok"]
        assert await other.restore("k") == ("k", b"whole")
        late = await gone.twirp("FinalizeCacheEntryUpload", {"key": "k", "version": "v", "size_bytes": "14"})
        assert late.status == 400
        assert await gone.services.blobs.commit(made.json["signed_upload_url"].split("/")[-1].split("?")[0], ("AAAA",))

    run(work)


def test_F22a_abandoned_uploads_are_removed(house: House) -> None:
    async def work() -> None:
        client = house.client()
        made = await client.twirp("CreateCacheEntry", {"key": "k", "version": "v"})
        await client.ask("PUT", f"{made.json['signed_upload_url']}&comp=block&blockid=AAAA", b"first")
        blobs = client.services.blobs
        assert blobs.sweep(older_than_s=3600) == 0
        assert blobs.sweep(older_than_s=-1) == 1
        assert not list((house.folder / "staging").iterdir())

    run(work)


def test_F22b_two_jobs_save_one_key_and_one_whole_content_stays(house: House) -> None:
    async def work() -> None:
        clients = [house.client(tenant(f"job{n}")) for n in range(4)]
        contents = [bytes([65 + n]) * 300_000 for n in range(4)]
        answers = await asyncio.gather(*(c.save("m", data) for c, data in zip(clients, contents, strict=True)))
        winners = [n for n, answer in enumerate(answers) if answer.json["ok"]]
        assert len(winners) == 1
        for answer in answers:
            assert answer.status == 200, "a save that lost still lets its step pass"
            assert answer.json["ok"] or "m" in answer.json["message"]
        assert await clients[0].restore("m") == ("m", contents[winners[0]])
        again = await clients[1].twirp("CreateCacheEntry", {"key": "m", "version": "v"})
        assert not again.json["ok"]
        assert "exists already" in again.json["message"]

    run(work)


def test_an_entry_whose_bytes_are_gone_is_a_miss_and_can_be_saved_again(house: House) -> None:
    async def work() -> None:
        client = house.client()
        await client.save("k", b"content")
        await client.services.blobs.remove(hashlib.sha256(b"content").hexdigest())
        assert await client.restore("k") is None
        assert (await client.save("k", b"content")).json["ok"]
        assert await client.restore("k") == ("k", b"content")

    run(work)


def test_sizes_that_differ_are_refused(house: House) -> None:
    async def work() -> None:
        client = house.client()
        made = await client.twirp("CreateCacheEntry", {"key": "k", "version": "v"})
        await client.ask("PUT", made.json["signed_upload_url"], b"12345")
        done = await client.twirp("FinalizeCacheEntryUpload", {"key": "k", "version": "v", "size_bytes": "6"})
        assert done.status == 400
        assert "5 bytes were uploaded" in done.json["msg"]
        assert await client.restore("k") is None

    run(work)


def test_branches_see_their_own_and_the_default_branch(house: House) -> None:
    async def work() -> None:
        main = house.client(tenant("a"))
        topic = house.client(tenant("b", scopes=scopes_of(TOPIC, default_branch="main")))
        other = house.client(tenant("c", scopes=scopes_of("refs/heads/other", default_branch="main")))
        fork = house.client(tenant("d", scopes=(Scope(MAIN, READ),)))
        await main.save("k", b"main")
        await topic.save("k", b"topic")
        assert await topic.restore("k") == ("k", b"topic")
        assert await other.restore("k") == ("k", b"main")
        assert await main.restore("k") == ("k", b"main")
        assert await fork.restore("k") == ("k", b"main")
        refused = await fork.twirp("CreateCacheEntry", {"key": "new", "version": "v"})
        assert not refused.json["ok"]
        elsewhere = house.client(tenant("e", repository="octo/other"))
        assert await elsewhere.restore("k") is None

    run(work)


def test_the_oldest_caches_go_when_room_is_short(house: House) -> None:
    async def work() -> None:
        client = house.client(quota=250)
        for n in range(4):
            house.clock.now += 300
            assert (await client.save(f"k{n}", bytes([n]) * 100)).json["ok"]
            if n == 1:
                house.clock.now += 300
                assert await client.restore("k0") is not None
        assert [await client.restore(f"k{n}") is not None for n in range(4)] == [False, False, True, True]
        kept = [path for path in (house.folder / "blobs").rglob("*") if path.is_file()]
        assert len(kept) == 2
        large = await client.ask("PUT", (await client.twirp("CreateCacheEntry", {"key": "x", "version": "v"})).json[
            "signed_upload_url"
        ], b"x" * 251)  # fmt: skip
        assert large.status == 413

    run(work)


# --- version 1


def test_the_older_protocol_saves_in_chunks_and_both_see_it(house: House) -> None:
    async def work() -> None:
        client = house.client()
        base = "/_apis/artifactcache/"
        miss = await client.ask("GET", f"{base}cache?keys=k%2Ck-&version=v")
        assert (miss.status, miss.body) == (204, b"")
        made = await client.ask("POST", f"{base}caches", {"key": "k", "version": "v", "cacheSize": 150_000})
        assert made.status == 201
        number = made.json["cacheId"]
        data = bytes(range(250)) * 600
        for start in (100_000, 0, 50_000):
            part = data[start : start + 50_000]
            header = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/*"}
            assert (await client.ask("PATCH", f"{base}caches/{number}", part, headers=header)).status == 204
        done = await client.ask("POST", f"{base}caches/{number}", {"size": len(data)})
        assert done.status == 204
        hit = await client.ask("GET", f"{base}cache?keys=other,k&version=v")
        assert hit.json["cacheKey"] == "k"
        assert hit.json["scope"] == MAIN
        assert (await client.ask("GET", hit.json["archiveLocation"])).body == data
        assert await client.restore("k") == ("k", data)
        again = await client.ask("POST", f"{base}caches", {"key": "k", "version": "v"})
        assert again.status == 409

    run(work)


def test_F22a_a_gap_in_the_older_protocol_is_no_cache(house: House) -> None:
    async def work() -> None:
        client = house.client()
        base = "/_apis/artifactcache/"
        number = (await client.ask("POST", f"{base}caches", {"key": "k", "version": "v"})).json["cacheId"]
        header = {"Content-Range": "bytes 10-14/*"}
        await client.ask("PATCH", f"{base}caches/{number}", b"12345", headers=header)
        assert (await client.ask("POST", f"{base}caches/{number}", {"size": 15})).status == 400
        assert (await client.ask("GET", f"{base}cache?keys=k&version=v")).status == 204
        short = await client.ask("PATCH", f"{base}caches/{number}", b"123", headers={"Content-Range": "bytes 0-9/*"})
        assert short.status == 400
        stranger = house.client(tenant("stranger"))
        assert (await stranger.ask("POST", f"{base}caches/{number}", {"size": 15})).status == 404

    run(work)
