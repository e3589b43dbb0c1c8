"""The choice of buckets to merge (BD-21, BT-17, BT-18)."""

from sluice.storage.delayed.window import Candidate, choose_window


def of(*counts: int, blocked: tuple[int, ...] = ()) -> list[Candidate]:
    return [Candidate(i not in blocked, count, 10 * (i + 1)) for i, count in enumerate(counts)]


def test_bt_17_two_buckets_with_width_four_are_both_chosen() -> None:
    assert choose_window(of(2, 2), 100) == slice(0, 2)


def test_bt_18_of_equal_windows_the_one_that_starts_first() -> None:
    assert choose_window(of(2, 2, 2, 2, 2), 100) == slice(0, 4)
    later_first = [Candidate(True, 2, 100 - i) for i in range(5)]
    assert choose_window(later_first, 100) == slice(1, 5)


def test_the_window_with_the_fewest_messages_wins() -> None:
    assert choose_window(of(9, 5, 3, 2, 4, 3), 100) == slice(2, 6)


def test_blocked_buckets_make_windows_narrower() -> None:
    assert choose_window(of(5, 3, 2, 4, 3, blocked=(2,)), 100) == slice(3, 5)
    assert choose_window(of(5, 3, 2, 4, 3, blocked=(1, 3)), 100) is None


def test_a_window_outgrows_its_greatest_size_only_if_it_must() -> None:
    assert choose_window(of(50, 50, 30, 50), 85) == slice(1, 3)
    assert choose_window(of(90, 50, 50, 90), 85) == slice(1, 3)


def test_one_bucket_or_none_cannot_be_merged() -> None:
    assert choose_window(of(5), 100) is None
    assert choose_window([], 100) is None
