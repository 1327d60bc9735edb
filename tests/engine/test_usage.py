"""What steps use adds up, and a message that is cut says how long it was."""

from __future__ import annotations

from engine.scripted import Reply, run_job
from runyard.engine.state import plus
from runyard.job import Usage


def test_sums_and_the_higher_peak() -> None:
    one, two = Usage(1.0, 0.5, 10, None, 3), Usage(2.0, 0.25, 7, 4, 5)
    assert plus(one, two) == Usage(3.0, 0.75, 10, 4, 8)
    assert plus(Usage(), Usage()) == Usage()


def test_an_annotation_that_is_cut_says_how_long_it_was() -> None:
    ran = run_job({"run": "a"}, script=lambda _: Reply(output=b"::error::" + b"m" * 5000 + b"\n::error::short\n"))
    long, short = ran.annotations(1)
    assert (len(long.message), long.truncated_from) == (4096, 5000)
    assert (short.message, short.truncated_from) == ("short", None)
    assert "The error above is shown up to 4096 of its 5000 characters" in ran.log(1)
