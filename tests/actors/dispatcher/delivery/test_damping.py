"""Names that come and go are remembered, and not more of them than there may be."""

from __future__ import annotations

from sluice.actors.dispatcher.delivery.damping import CALM, MOST_GIVEN, Damping

GRACE_MS = 1_000


def test_names_that_come_once_are_not_kept_for_ever() -> None:
    damping = Damping(GRACE_MS)
    damping.given("steady", 0)
    for number in range(2 * MOST_GIVEN):
        damping.given(f"c{number}", 1)
        damping.given("steady", 1)
    assert len(damping._given) == MOST_GIVEN
    for _ in range(3):
        damping.given_up("steady", 2)
    assert damping.delay("steady", 2) == 2 * GRACE_MS
    damping.given("steady", 3)
    damping.given_up("steady", 3 + CALM * GRACE_MS)
    assert damping.delay("steady", 3 + CALM * GRACE_MS) == 0
