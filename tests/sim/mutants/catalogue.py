"""All mutants, by the part of the broker that they break."""

from __future__ import annotations

from tests.sim.mutants import Mutant
from tests.sim.mutants.dispatching import DISPATCHING
from tests.sim.mutants.storing import STORING

MUTANTS: list[Mutant] = [*STORING, *DISPATCHING]
