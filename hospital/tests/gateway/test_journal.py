"""Where an image is on its way, across restarts."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hospital.tests.support.orthanc import gateway_settings
from medclip_hospital.gateway import launcher
from medclip_hospital.gateway.journal import Journal

FOREVER_S = 1e6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def journal(file: Path):
    journal = Journal(file)
    yield journal
    journal.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, seconds, to be set by the test."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def next_of(journal: Journal):
    (entry,) = journal.waiting(time.time(), 9)
    return entry


def test_an_image_goes_through_its_states_and_a_restart_finds_it(journal, file):
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
    assert (journal.retry("b"), journal.retry()) == (0, 1)
    assert {item.digest for item in journal.waiting(time.time(), 9)} == {"a", "b"}
    assert journal.entry("a").attempts == 0
    assert (journal.entry("c"), journal.state("c")) == (None, None)


def test_images_are_taken_up_in_the_order_in_which_they_wait(journal, clock):
    assert (journal.oldest_waiting_s(), journal.next_wait_s(1000)) == (0, None)
    for clock[0], digest in ((1000, "c"), (1010, "b"), (1020, "a")):
        journal.add(digest, digest, "CR")
    assert [entry.digest for entry in journal.waiting(1020, 2)] == ["c", "b"]
    assert (journal.oldest_waiting_s(), journal.next_wait_s(1020)) == (20, None)
    journal.failed(journal.entry("c"), "fault", not_before=1050, give_up_s=FOREVER_S)
    journal.failed(journal.entry("b"), "fault", not_before=1080, give_up_s=FOREVER_S)
    assert [entry.digest for entry in journal.waiting(1049, 9)] == ["a"]
    assert (journal.next_wait_s(1020), journal.next_wait_s(1050)) == (30, 30)
    assert [entry.digest for entry in journal.waiting(1080, 9)] == ["a", "c", "b"]
    journal.refused("c", "view")
    assert (journal.oldest_waiting_s(), journal.next_wait_s(1020)) == (10, 60)
    clock[0] = 900  # somebody has set the clock back
    assert journal.oldest_waiting_s() == 0


def test_a_step_that_fails_has_changed_nothing_and_holds_nothing_up(journal: Journal) -> None:
    journal.add("a", "1", "CR")
    journal.answered("a", "{}", 1.0)
    with pytest.raises(sqlite3.Error):
        journal.built("a", ["1.1", object()])
    assert (journal.state("a"), journal.unsent("a")) == ("answered", [])
    journal.built("a", ["1.1"])
    assert (journal.state("a"), journal.unsent("a")) == ("built", ["1.1"])


def test_what_was_forgotten_is_new_again(journal: Journal, clock: list[float]) -> None:
    journal.add("abc", "1", "CR")
    journal.refused("abc", "view")
    assert journal.older(0, in_spool=True) == ["abc"]
    clock[0] += 60
    assert journal.older(60, in_spool=True) == ["abc"]
    assert journal.older(61, in_spool=True) == []
    journal.out_of_spool(["abc"])
    assert journal.older(0, in_spool=True) == []
    assert journal.older(0, in_spool=False) == ["abc"]
    assert journal.forget("ab") == ["abc"]
    assert journal.state("abc") is None
    journal.add("abc", "1", "CR")
    journal.answered("abc", "{}", 1.0)
    journal.built("abc", ["1.1"])
    journal.forget("abc")
    assert journal.unsent("abc") == []


def test_every_commit_is_durable_before_it_returns(journal: Journal) -> None:
    assert journal._rows("pragma journal_mode") == [("wal",)]
    assert journal._rows("pragma synchronous") == [(2,)]


def other_tables(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as db:
        db.execute("create table images (name text)")
        db.commit()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "text": lambda file: file.write_text("not a database " * 400),
    "its head is gone": lambda file: file.write_bytes(bytes(100) + file.read_bytes()[100:]),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "a page of zeros": lambda file: file.write_bytes(
        file.read_bytes()[:4096] + bytes(4096) + file.read_bytes()[8192:]
    ),
    "other tables": other_tables,
}


def written(folder: Path) -> tuple[Path, list[str]]:
    """The file of a gateway's journal, which is not there, and the words that ask for its state."""
    settings = gateway_settings(folder, "http://127.0.0.1:9")
    (folder / "gateway.yaml").write_text(settings.model_dump_json())
    settings.spool.mkdir(mode=0o700)
    return settings.spool / "journal.sqlite3", ["status", "--config", str(folder / "gateway.yaml")]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_journal_is_named_and_may_be_deleted(tmp_path, capsys, damage):
    file, status = written(tmp_path)
    with closing(Journal(file)) as journal:
        for number in range(200):
            journal.add(f"{number:064x}", f"1.2.{number}", "CR1")
    damage(file)
    for command in ("status", "run"):
        assert launcher.main([command, *status[1:]]) == 4
        said = capsys.readouterr().err
        assert f"journal {file} is damaged" in said
        assert f"delete {file}*" in said
        assert "nothing is lost" in said
        assert "disk full" not in said
    for path in file.parent.glob("journal.sqlite3*"):
        path.unlink()
    assert launcher.main(status) == 0


def test_a_journal_that_cannot_be_opened_is_no_damage(tmp_path, capsys):
    _, status = written(tmp_path)
    (tmp_path / "spool/journal.sqlite3").mkdir()
    assert launcher.main(status) == 4
    assert "is its disk full, or locked?" in capsys.readouterr().err


def test_an_image_is_given_up_when_it_has_failed_for_so_long(journal, clock):
    journal.add("a", "1", "CR")
    for clock[0], is_stuck in ((1100, False), (1159, False), (1160, True)):
        assert journal.failed(journal.entry("a"), "fault", 0, give_up_s=60) == is_stuck
    assert journal.troubles() == [("a", "stuck", "fault", 3)]
    clock[0] = 1200
    journal.retry()
    assert not journal.failed(journal.entry("a"), "fault", 0, give_up_s=60)  # counted from here
    journal.answered("a", "{}", 1201)
    assert (journal.entry("a").attempts, journal.entry("a").failing_since) == (0, None)
    assert journal.failed(journal.entry("a"), "fault", 0, give_up_s=0)
    journal.retry("a")
    assert journal.state("a") == "answered"  # it goes on from where it was


def test_an_image_with_the_content_of_another_is_done_with_it(journal: Journal) -> None:
    for digest in ("a", "b"):
        journal.add(digest, "1", "CR")
        journal.answered(digest, "{}", 1.0)
        journal.built(digest, ["1.1"])
    assert (journal.unsent("a"), journal.unsent("b")) == (["1.1"], [])
