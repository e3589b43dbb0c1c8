"""All mutants, by the part of the broker that they break."""

from __future__ import annotations

from tests.sim.mutants import Mutant

MUTANTS: list[Mutant] = []
