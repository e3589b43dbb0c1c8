"""The order sentinel: it looks only at messages that are really sent, and says whether the promises hold.

    promise 2   of one hash, the unacknowledged messages are with at most one consumer
    promise 3   first deliveries of one hash come in the order of publication (delayed messages are exempt, KS-64)
    stronger    with `nack_order=key`, all deliveries of one hash: none while a later one is out, none behind a
                later one that went out although it had come back (delayed messages are exempt until they come back)

It keeps its own arrays, fed only by "this was sent" and "this was given back", and never looks at the routing state:
a defect in the routing cannot hide itself here. It is always on. Where the policy promises both, a breach raises
InvariantViolation, which stops the actor before the messages leave it. Where the policy is known not to keep them
(`read_position`, `last_sent_position` after negative acknowledgements, out-of-order delivery, Shared), breaches are
only counted. How much was checked is counted beside it, since "no violations" of nothing is worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.actors.key_shared.state.redelivery_order import Repeated
from sluice.actors.key_shared.state.tables import HashGroups
from sluice.actors.key_shared.state.window import HashIndex, Mask, Reduced
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.position import Positions, show

_ONE = np.int32(1)
_HELD, _NEXT = 1, 2
_STORIES = 16


class Sentinel:
    """Counts checks and violations. name(slot) describes a consumer in a story.

    repeated: the stronger promise is checked too.
    """

    def __init__(self, *, strict: bool, name: Callable[[int], str], repeated: bool = False) -> None:
        self.strict = strict
        self.name = name
        self.checked_holder = 0
        self.checked_order = 0
        self.violations_holder = 0
        self.violations_order = 0
        self.stories: list[str] = []
        self.checked_repeated = 0
        self._repeated = Repeated() if repeated else None
        self._hashes = HashGroups(np.uint16, np.int32, np.int64)
        """The holder, how many messages are held, and at or behind which position the first delivery has to be."""

    def describe_by(self, name: Callable[[int], str]) -> None:
        """Describe consumers in this way from now on."""
        self.name = name

    def continue_from(self, before: Sentinel) -> None:
        """Go on with the counts and the stories; no message is out any more, and every one may be sent again."""
        self.checked_holder, self.checked_order = before.checked_holder, before.checked_order
        self.violations_holder, self.violations_order = before.violations_holder, before.violations_order
        self.checked_repeated, self.stories = before.checked_repeated, before.stories

    @property
    def held(self) -> int:
        """Messages that are sent and not given back."""
        return int(self._hashes.columns[_HELD].sum())

    def sent(
        self, slots: Reduced, hashes: HashIndex, positions: Positions, first: Mask | None, placed: Mask | None = None
    ) -> None:
        """Check messages that go out now: per slot in the order in which the consumer will see them.

        first: which are first deliveries that have to be in order; None: all. placed: which have a place in the order,
        repeated deliveries among them; None: all. All of shape (n,).
        """
        if self._repeated is not None:
            self._check_repeated(hashes, positions, placed)
        rows = self.note_held(slots, hashes, positions, placed)
        back = (positions[1:] <= positions[:-1]) & (slots[1:] == slots[:-1])
        if first is not None:
            slots, hashes, positions, rows = slots[first], hashes[first], positions[first], rows[first]
        self.checked_order += len(hashes)
        following: Positions = self._hashes.columns[_NEXT]
        late = positions < following[rows]
        wrong = int(np.count_nonzero(late)) + int(np.count_nonzero(back))
        if not wrong:
            # Within one consumer positions rise, so the last of equal hashes is the highest.
            following[rows] = positions + 1
            return
        np.maximum.at(following, rows, positions + 1)
        self.violations_order += wrong
        at = int(late.argmax()) if late.any() else 0
        self._tell(
            f"promise 3 broken: {show(int(positions[at]))} (hash {int(hashes[at])}) goes to "
            f"{self.name(int(slots[at]))} after a later message of its hash was delivered for the first time, "
            f"or out of order within one delivery ({wrong} messages)"
        )

    def _check_repeated(self, hashes: HashIndex, positions: Positions, placed: Mask | None) -> None:
        assert self._repeated is not None
        self.checked_repeated += len(positions) if placed is None else int(np.count_nonzero(placed))
        wrong = self._repeated.sent(hashes, positions, placed)
        if wrong.any():
            self.violations_order += int(np.count_nonzero(wrong))
            at = int(wrong.argmax())
            self._tell(
                f"nack_order broken: {show(int(positions[at]))} (hash {int(hashes[at])}) goes out while a later "
                f"message of its hash is out, or behind one ({int(np.count_nonzero(wrong))} messages)"
            )

    def note_held(
        self, slots: Reduced, hashes: HashIndex, positions: Positions, placed: Mask | None = None
    ) -> HashIndex:
        """Check and note that consumers have messages from now on, sent now or held since before a change of owner.

        Return the rows of their hashes.
        """
        self.checked_holder += len(hashes)
        rows = self._hashes.rows(hashes)
        holder, held, _ = self._hashes.columns
        before = holder[rows]
        wrong = (held[rows] > 0) & (before != slots)
        holder[rows] = slots
        wrong |= holder[rows] != slots
        np.add.at(held, rows, _ONE)
        if self._repeated is not None:
            self._repeated.note_sent(hashes, positions, placed)
        if np.count_nonzero(wrong):
            self.violations_holder += int(wrong.sum())
            at = int(wrong.argmax())
            self._tell(
                f"promise 2 broken: {show(int(positions[at]))} (hash {int(hashes[at])}) goes to "
                f"{self.name(int(slots[at]))} while {self.name(int(before[at]))} holds unacknowledged messages of "
                f"the hash ({int(wrong.sum())} messages)"
            )
        return rows

    def given_back(self, hashes: HashIndex, positions: Positions | None = None, *, again: bool = False) -> None:
        """Note that messages of these hashes are acknowledged or have left their consumer.

        positions: one a hash, only for the stronger promise. again: they are to go out again.
        """
        if self._repeated is not None and positions is not None:
            self._repeated.given_back(hashes, positions, again=again)
        rows = self._hashes.rows(hashes)
        held = self._hashes.columns[_HELD]
        np.subtract.at(held, rows, _ONE)
        if np.count_nonzero(held[rows] < 0):
            raise InvariantViolation("more messages of a hash came back than were ever sent")

    def wanted_again(self, hashes: HashIndex, positions: Positions) -> None:
        """Note messages that were put aside, and go out before later messages of their hash."""
        if self._repeated is not None:
            self._repeated.wanted_again(hashes, positions)

    def _tell(self, story: str) -> None:
        self.stories.append(story)
        del self.stories[:-_STORIES]
        if self.strict:
            raise InvariantViolation(story)

    def stats(self) -> dict[str, int | list[str]]:
        """Return the counters and the newest stories."""
        return {
            "checkedHolder": self.checked_holder,
            "checkedOrder": self.checked_order,
            "violationsHolder": self.violations_holder,
            "violationsOrder": self.violations_order,
            "checkedRepeated": self.checked_repeated,
            "stories": list(self.stories),
        }
