"""Mutants of the decisions that a replay of a recorded incident finds, without a cluster."""

from __future__ import annotations

from tools.mutants import Mutant

BROKER = "broker"
_REPLAYED = "tests/actors/recorder/test_planted.py::test_recorded_incident_comes_out_as_it_was"
_POLICIES = "sluice.actors.key_shared.state.policies"
_TABLES = "sluice.actors.key_shared.state.tables"
_PASS = "sluice.actors.key_shared.state.dispatch_pass"

REPLAYING: list[Mutant] = [
    Mutant(
        name="a replay lets a draining hash go to its new owner",
        module=_POLICIES,
        old="return Gate.DRAINING, tables.drains[rows.hashes]",
        new="return Gate.DRAINING, tables.drains[rows.hashes] & False",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a few draining hashes hold nothing back",
        module=_POLICIES,
        old="tables.draining == 0",
        new="tables.draining < 9",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a few messages that were read forward wait for more",
        module=_PASS,
        old="    if window.count[FRESH]:\n",
        new="    if window.count[FRESH] > 4:\n",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a key does not wait for what was given back with a delay",
        module=_PASS,
        old="rows.positions > tables.held_from[rows.hashes]",
        new="rows.positions < 0",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a key goes on before what was asked back is here",
        module=_PASS,
        old="tables.revoked[rows.hashes] > 0",
        new="tables.revoked[rows.hashes] < 0",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="what was given back with a delay never comes again",
        module=_PASS,
        old="    nacks.wake(core, now)\n",
        new="",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a consumer gets one message less than it has permits for",
        module=_PASS,
        old="over = counts > allowance\n",
        new="allowance = np.maximum(allowance - 1, 0)\n    over = counts > allowance\n",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="of more than a consumer has permits for the last go out",
        module=_PASS,
        old="goes = rank < np.repeat(most, every)",
        new="goes = rank >= np.repeat(every - most, every)",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="messages that wait go out backwards",
        module=_PASS,
        old="rows = core.window.rows_in(REPLAY, UNORDERED)\n",
        new="rows = core.window.rows_in(REPLAY, UNORDERED)[::-1]\n",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a hash comes free while one message of it is out",
        module=_TABLES,
        old="(pending[rows] == 0)",
        new="(pending[rows] <= 1)",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="a hash of which one message is out does not drain",
        module=_TABLES,
        old="mask: Mask = (self.pending > 0)",
        new="mask: Mask = (self.pending > 1)",
        world=BROKER,
        test=_REPLAYED,
    ),
    Mutant(
        name="what one message gives back counts for two",
        module=_TABLES,
        old="np.subtract.at(pending, rows, _ONE)",
        new="np.subtract.at(pending, rows, 2 * _ONE)",
        world=BROKER,
        test=_REPLAYED,
    ),
]
