"""What a kill lost or doubled is counted."""

from benchmarks.kills import KILLS, VICTIMS, Count


def test_lost_changed_and_doubled_scores_are_counted() -> None:
    count = Count()
    before = count.compare({}, [("a", "1"), ("b", "2"), ("c", "3")])
    assert (count.lost, count.duplicates, count.acknowledged) == (0, 0, 3)
    after = count.compare(before, [("a", "1"), ("c", "4"), ("d", "5"), ("d", "5")])
    assert after == {"a": "1", "c": "4", "d": "5"}
    assert (count.lost, count.duplicates, count.acknowledged) == (2, 1, 3)


def test_kills_suffice_when_a_third_of_them_hit_a_flush() -> None:
    assert not Count(kills=60, in_flush=19).suffices(60)
    assert not Count(kills=59, in_flush=30).suffices(60)
    assert Count(kills=60, in_flush=20).suffices(60)


def test_the_long_count_kills_every_job_sixty_times() -> None:
    assert {victim.kills("long") for victim in VICTIMS} == {KILLS["long"]} == {60}
    assert all(victim.kills("quick") >= 1 for victim in VICTIMS)
