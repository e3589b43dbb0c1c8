"""Mutants of the heaviest keys: which are named, and when one is blamed."""

from __future__ import annotations

from tools.mutants import Mutant

_WATCH = "sluice.actors.dispatcher.delivery.hot_keys"
_UNITS = "tests/actors/dispatcher/delivery/test_hot_keys.py"

COUNTING: list[Mutant] = [
    Mutant(
        name="a key is blamed although its messages flow",
        module=_WATCH,
        old="return found.waiting > 0 or now - found.held_since >= HELD_BACK_MS",
        new="return True",
        world="broker",
        test=f"{_UNITS}::test_no_key_is_blamed_for_what_it_does_not_do",
    ),
    Mutant(
        name="a key is blamed at the first look",
        module=_WATCH,
        old="if now - self._since >= HELD_BACK_MS and not self._name:",
        new="if not self._name:",
        world="broker",
        test=f"{_UNITS}::test_a_key_that_holds_a_partition_back_is_named",
    ),
    Mutant(
        name="a key is blamed for ever",
        module=_WATCH,
        old='self._key, self._name, self.problem = -1, "", ""',
        new="self._key = -1",
        world="broker",
        test=f"{_UNITS}::test_a_key_that_holds_a_partition_back_is_named",
    ),
    Mutant(
        name="a key with a third of the messages is the heaviest",
        module="sluice.actors.key_shared.observe.heaviest",
        old="if 2 * len(mine) <= len(rows) or",
        new="if 3 * len(mine) <= len(rows) or",
        world="broker",
        test=f"{_UNITS}::test_the_heaviest_is_who_has_more_than_half",
    ),
    Mutant(
        name="time held is that of all messages that wait",
        module="sluice.actors.dispatcher.delivery.hot_keys",
        old="self._held.add(distinct, np.bincount(which, passed).astype(np.int64))",
        new="self._held.add(distinct, (np.bincount(which, passed) / number).astype(np.int64))",
        world="broker",
        test=f"{_UNITS}::test_the_key_that_is_held_longest_is_not_the_one_with_most",
    ),
    Mutant(
        name="a counter that had no place is forgotten with what it weighed",
        module="sluice.storage.format.heavy_hitters",
        old="            self.error += cut\n",
        new="",
        world="broker",
        test="tests/storage/format/test_heavy_hitters.py::test_the_heaviest_of_skewed_keys_are_named",
    ),
]
