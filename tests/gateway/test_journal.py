"""Where an image is on its way, across restarts."""

import time
from pathlib import Path

import pytest

from gateway.journal import Journal

FOREVER_S = 1e6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def journal(file: Path):
    journal = Journal(file)
    yield journal
    journal.close()


def next_of(journal: Journal):
    (entry,) = journal.waiting(time.time(), 9)
    return entry


def test_an_image_goes_through_its_states_and_a_restart_finds_it(
    journal: Journal, file: Path
) -> None:
    journal.add("d", "1.2.3", "CR1")
    journal.add("d", "9.9.9", "CR2")  # known: stays as it was
    assert (journal.state("d"), journal.knows_uid("1.2.3"), journal.knows_uid("9.9.9")) == (
        "received", True, False,
    )  # fmt: skip
    journal.answered("d", "{}", 17.0)
    again = Journal(file)
    entry = next_of(again)
    assert (entry.state, entry.answer, entry.answered_at) == ("answered", "{}", 17.0)
    again.answered("d", "{late}", 18.0)  # the first answer stands
    assert next_of(again).answer == "{}"
    again.built("d", ["1.1", "1.2"])
    again.sent("d", ["1.1"])
    assert (again.state("d"), again.unsent("d")) == ("built", ["1.2"])
    again.sent("d", ["1.2"])
    again.close()
    assert journal.state("d") == "done"
    assert journal.waiting(time.time(), 9) == []
    assert journal.counts()["done"] == 1


def test_a_failure_holds_up_one_image_alone_and_later_makes_it_stuck(journal: Journal) -> None:
    journal.add("a", "1", "CR")
    journal.add("b", "2", "CR")
    entry = journal.entry("a")
    assert not journal.failed(entry, "destination_unreachable", time.time() + 60, FOREVER_S)
    assert [item.digest for item in journal.waiting(time.time(), 9)] == ["b"]
    assert journal.troubles() == [("a", "received", "destination_unreachable", 1)]
    assert journal.failed(journal.entry("a"), "destination_unreachable", time.time(), 0)
    assert journal.counts() | {} == {
        "received": 1, "answered": 0, "built": 0, "done": 0, "refused": 0, "stuck": 1,
    }  # fmt: skip
    assert journal.retry() == 1
    assert {item.digest for item in journal.waiting(time.time(), 9)} == {"a", "b"}
    assert journal.entry("a").attempts == 0


def test_stuck_images_go_on_from_where_they_were(journal: Journal) -> None:
    journal.add("a", "1", "CR")
    journal.answered("a", "{}", 1.0)
    journal.failed(journal.entry("a"), "fault", 0, 0)
    assert journal.state("a") == "stuck"
    assert journal.retry("b") == 0
    journal.retry("a")
    assert journal.state("a") == "answered"


def test_what_was_forgotten_is_new_again(journal: Journal) -> None:
    journal.add("abc", "1", "CR")
    journal.refused("abc", "view")
    assert journal.older(0, in_spool=True) == ["abc"]
    assert journal.older(60, in_spool=True) == []
    journal.out_of_spool(["abc"])
    assert journal.older(0, in_spool=True) == []
    assert journal.older(0, in_spool=False) == ["abc"]
    assert journal.forget("ab") == ["abc"]
    assert journal.state("abc") is None


def test_an_image_with_the_content_of_another_is_done_with_it(journal: Journal) -> None:
    for digest in ("a", "b"):
        journal.add(digest, "1", "CR")
        journal.answered(digest, "{}", 1.0)
        journal.built(digest, ["1.1"])
    assert (journal.unsent("a"), journal.unsent("b")) == (["1.1"], [])


def test_every_commit_is_durable_before_it_returns(journal: Journal) -> None:
    assert journal._rows("pragma journal_mode") == [("wal",)]
    assert journal._rows("pragma synchronous") == [(2,)]
