"""Masking: the pairs M1 to M14, deviation D5, and that no cut of the stream changes what is shown."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.job import Claim, JobSpec, RunContext
from runyard.report.mask_forms import derived_forms, weakness
from runyard.report.masks import MASK, Masker, masker_for

PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    + "\n".join(f"M{n:02d}" + "QWxhZGRpbjpvcGVuU2VzYW1l" * 2 for n in range(48))
    + ("\n-----END PRIVATE KEY-----")
)


def masker(*masks: str, strict: bool = False) -> Masker:
    made = Masker(strict=strict)
    for mask in masks:
        made.add_secret(mask)
    return made


@pytest.mark.parametrize(
    ("masks", "line", "expected"),
    [
        pytest.param(["ab", "cd"], "abcd", "***", id="M1"),
        pytest.param(["abc", "bcd"], "abcd", "***", id="M2"),
        pytest.param(["hello"], "dTpoZWxsbw==", "dTpo***", id="M3"),
        pytest.param(["Tok"], "tok", "tok", id="M4"),
        pytest.param(['a"b'], 'a\\"b', "***", id="M5"),
        pytest.param(["a b"], "a%20b", "***", id="M6"),
        pytest.param([" pad "], "pad", "***", id="M9"),
        pytest.param(["a"], "banana", "b***n***n***", id="M10"),
        pytest.param(["hello"], b"hello".hex(), b"hello".hex(), id="M12"),
        pytest.param(["hello"], "aGVsbG86dQ==", "aGVsbG86dQ==", id="M13"),
        pytest.param(["hello"], "eGhlbGxvOnU=", "eGhl***OnU=", id="M14"),
    ],
)
def test_the_pairs(masks: list[str], line: str, expected: str) -> None:
    for strict in (False, True):
        assert masker(*masks, strict=strict).mask_text(line) == expected


def test_M7_add_mask_hides_each_line() -> None:
    made = Masker()
    assert made.add_mask("l1\nl2")
    assert made.mask_text("l2") == "***"
    assert made.mask_text("l1") == "***"
    assert made.take_added() == ("l1\nl2",)
    assert made.take_added() == ()


def test_C17_a_blank_mask_is_refused_and_hides_nothing() -> None:
    made = Masker()
    assert not made.add_mask("")
    assert not made.add_mask(" \t")
    assert made.mask(b"a b") == b"a b"


def test_M8_D5_short_lines_of_a_secret_are_not_masks_of_their_own() -> None:
    secret = '{\n "k": 1\n}'
    assert masker(secret).mask_text("{x}") == "{x}"
    assert masker(secret, strict=True).mask_text("{x}") == "***x***"


def test_D5_the_whole_value_is_hidden_across_line_ends() -> None:
    secret = '{\n "k": 1\n}'
    assert masker(secret).mask_text(f"<{secret}>") == "<***>"
    assert masker(secret).mask_text(f"<{secret}>".replace("\n", "\r\n")) == "<***>"
    assert masker(secret, strict=True).mask_text(f"<{secret}>") == "<***\n ***\n***>"


def test_M11_an_output_that_holds_a_mask_is_noticed() -> None:
    made = masker("s3cret-value")
    assert made.hides("x s3cret-value y")
    assert not made.hides("other")


def test_F42_an_empty_secret_hides_nothing_and_weak_ones_are_named() -> None:
    assert masker("").mask_text("docker build 1 of 11") == "docker build 1 of 11"
    assert masker("1", "docker", "", "success").mask_text("docker build 1 of 11") == "*** build *** of ***"
    assert [weakness(text) for text in ("1", "docker", "success", "", "kV8-long-enough")] == [
        "short",
        "common",
        "common",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        ("hello", ["aGVsbG8=", "ZWxsbw==", "bGxv"]),
        ('pa"ss&w', ['pa\\"ss&w', "pa%22ss%26w", "pa&quot;ss&amp;w"]),
        ("it's", ["it''s", "it&apos;s"]),
        ("a\tb\u2028\x01", ["a\\tb\\u2028\\u0001"]),
        ('"quoted text"', ["quoted text"]),
        ("first1&second2&third3", ["first1&second2&", "third3"]),
        ("first1&+second2&third3", ["first1&+", "econd2&third3"]),
    ],
)
def test_the_derived_forms(value: str, forms: list[str]) -> None:
    assert set(forms) <= set(derived_forms(value))
    assert "" not in derived_forms(value)


def test_short_parts_around_an_ampersand_are_no_forms() -> None:
    assert not {"ab&", "cd"} & set(derived_forms("ab&cd"))
    assert '"short"' in derived_forms('"short"')
    assert "short" not in derived_forms('"short"')


def test_a_line_is_seen_at_once_though_a_long_key_is_registered() -> None:
    stream = masker(PEM).stream()
    assert stream.feed(b"ready\n") == b"ready\n"
    assert stream.feed(b"listening on 80") == b"listening on 80"
    assert stream.feed(b"\n-----BEG") == b"\n"
    assert stream.feed(b"AN\n") == b"-----BEGAN\n"


def test_a_key_of_many_lines_becomes_one_mask_however_it_is_cut() -> None:
    made = masker(PEM)
    text = f"a\n{PEM}\nb\n".encode()
    for size in (1, 7, 64, 1000):
        stream = made.stream()
        shown = b"".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.flush()
        assert shown == b"a\n***\nb\n"


def test_the_beginning_of_a_key_is_hidden_and_its_line_end_waits() -> None:
    stream = masker(PEM).stream()
    first, second = PEM.encode().split(b"\n")[:2]
    assert stream.feed(first + b"\n") == MASK
    assert stream.feed(second + b"\n") == b""
    assert stream.feed(b"something else\n") == b"\n***\nsomething else\n"
    assert stream.flush() == b""


def test_a_mask_added_while_a_step_runs_counts_from_the_next_byte() -> None:
    made = masker("first-secret")
    stream = made.stream()
    assert stream.feed(b"later-secret\n") == b"later-secret\n"
    made.add_mask("later-secret")
    assert stream.feed(b"later-secret and first-secret\n") == b"*** and ***\n"


def test_many_masks_one_by_one_are_all_found() -> None:
    made, stream = Masker(), None
    stream = made.stream()
    for number in range(300):
        made.add_mask(f"secret-number-{number:04d}-x")
        shown = stream.feed(f"<secret-number-{number:04d}-x> <secret-number-{number // 2:04d}-x>\n".encode())
        assert shown == b"<***> <***>\n"
    assert made.mask(b"secret-number-0300-x") == b"secret-number-0300-x"


def test_many_masks_with_one_beginning() -> None:
    made = Masker()
    for number in range(200):
        made.add_mask(f"AKIAIOSFODNN7EXAMPLE{number:03d}")
    data = b"AKIAIOSFODNN7EXAMPLE199 AKIAIOSFODNN7EXAMPLE\n" * 2000
    assert made.mask(data) == b"*** AKIAIOSFODNN7EXAMPLE\n" * 2000


def test_a_pattern_hides_what_it_matches_and_its_own_text() -> None:
    made = Masker()
    assert made.add_pattern(r"tok_[0-9]+")
    assert not made.add_pattern("(")
    assert made.mask_text("a tok_123, ä tok_9 tok_x ( tok_[0-9]+") == "a ***, ä *** tok_x *** ***"
    stream = made.stream()
    assert stream.feed(b"tok_1") == b""
    assert stream.feed(b"2\nnext") == b"***\n"
    assert stream.flush() == b"next"


def test_a_pattern_that_takes_too_long_hides_its_line() -> None:
    made = Masker()
    made.add_pattern(r"^(a|a)*(a|a)*(a|a)*b$")
    assert made.mask(b"x\n" + b"a" * 60 + b"c\n").startswith(b"x\n")


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    data = bytes(range(256)) * 3
    assert masker("secret").mask(data) == data
    assert masker("secret").mask(b"\xffsecret\x00") == b"\xff***\x00"


def test_the_masks_of_a_claim() -> None:
    claim = Claim(
        attempt=1,
        lease_id="l",
        expires_in_s=60,
        spec=JobSpec(id="1", run_id="1", key="k", job="j", name="j", steps=()),
        context=RunContext(github={}),
        secrets={"A": "alpha-secret", "ACTIONS_STEP_DEBUG": "true", "GITHUB_TOKEN": "ghs_token"},
        masks=("hint-value",),
        mask_patterns=("h[0-9]{3}x",),
        tokens={"job": "jwt-token"},
    )
    made = masker_for(claim)
    git = base64.b64encode(b"x-access-token:ghs_token").decode()
    assert made.mask_text(f"alpha-secret true hint-value h123x jwt-token {git}") == "*** true *** *** *** ***"
    assert made.take_added() == ()


def _reference(patterns: list[bytes], data: bytes) -> bytes:
    """The rule itself, as plainly as it can be written."""
    hidden = bytearray(len(data))
    for pattern in patterns:
        for at in range(len(data)):
            if data.startswith(pattern, at):
                hidden[at : at + len(pattern)] = b"\x01" * len(pattern)
    shown, last = bytearray(), 0
    for byte, flag in zip(data, hidden, strict=True):
        if flag and not last:
            shown += MASK
        elif not flag:
            shown.append(byte)
        last = flag
    return bytes(shown)


_TEXT = st.text(alphabet='ab"&\n\r c', min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(_TEXT, max_size=4), st.text(alphabet='ab"&\n\r c*', max_size=60), st.data(), st.booleans())
def test_any_cut_shows_what_the_whole_shows_and_nothing_leaks(
    secrets: list[str], text: str, data: st.DataObject, strict: bool
) -> None:
    made = masker(*secrets, strict=strict)
    whole = text.encode()
    for secret in data.draw(st.lists(st.sampled_from(secrets), max_size=2)) if secrets else []:
        whole += secret.encode()
    stream, at, shown = made.stream(), 0, b""
    while at < len(whole):
        size = data.draw(st.integers(1, 9))
        shown += stream.feed(whole[at : at + size])
        at += size
    shown += stream.flush()
    patterns = [*made._search._known, *(bytes([byte]) for byte in made._single)]
    assert shown == _reference(patterns, whole) == made.mask(whole)
    assert made._unfinished(b"c\n") == 2 or any(pattern.startswith((b"c\n", b"\n")) for pattern in patterns)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=5), st.text(alphabet="abcd"))
def test_the_automaton_and_the_table_agree(secrets: list[str], text: str) -> None:
    young, built = masker(*secrets), masker(*secrets)
    built._search._build()
    assert young.mask_text(text) == built.mask_text(text)
