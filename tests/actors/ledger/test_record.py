"""The three numbers of the quorum arithmetic, proved by trying every case of small ensembles."""

from __future__ import annotations

from itertools import combinations

import pytest

from sluice.actors.ledger.record import Quorum
from sluice.storage.errors import Invalid

SHAPES = [Quorum(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


def test_impossible_sizes_are_refused() -> None:
    for sizes in ((2, 3, 2), (3, 2, 3), (3, 2, 0)):
        with pytest.raises(Invalid):
            Quorum(*sizes)


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_runs_are_striped_over_all_slots_evenly(quorum: Quorum) -> None:
    names = [f"b{slot}" for slot in range(quorum.ensemble)]
    held = dict.fromkeys(names, 0)
    for run in range(quorum.ensemble):
        chosen = quorum.write_set(run, names)
        assert len(set(chosen)) == quorum.write
        assert chosen[0] == names[run % quorum.ensemble]
        for slot, name in enumerate(names):
            assert quorum.stored_in(slot, run) == (name in chosen)
            held[name] += name in chosen
    assert set(held.values()) == {quorum.write}


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_enough_fences_leave_no_ack_quorum_and_one_less_may(quorum: Quorum) -> None:
    names = [f"b{slot}" for slot in range(quorum.ensemble)]

    def writable(fenced: tuple[str, ...]) -> bool:
        write_sets = [quorum.write_set(run, names) for run in range(quorum.ensemble)]
        return any(sum(name not in fenced for name in chosen) >= quorum.ack for chosen in write_sets)

    assert not any(writable(fenced) for fenced in combinations(names, quorum.fence_answers))
    if quorum.write == quorum.ensemble:
        assert any(writable(fenced) for fenced in combinations(names, quorum.fence_answers - 1))


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_enough_negatives_exclude_a_confirmation(quorum: Quorum) -> None:
    assert quorum.write - quorum.missing_answers < quorum.ack
    assert quorum.write - (quorum.missing_answers - 1) >= quorum.ack
