"""All mutants, by the part of the broker that they break."""

from __future__ import annotations

from tests.sim.mutants import Mutant
from tests.sim.mutants.changing import CHANGING
from tests.sim.mutants.checking_input import CHECKING_INPUT
from tests.sim.mutants.counting import COUNTING
from tests.sim.mutants.delaying import DELAYING
from tests.sim.mutants.dispatching import DISPATCHING
from tests.sim.mutants.giving_back import GIVING_BACK
from tests.sim.mutants.giving_up import GIVING_UP
from tests.sim.mutants.hearing_strangers import HEARING_STRANGERS
from tests.sim.mutants.holding import HOLDING
from tests.sim.mutants.idling import IDLING
from tests.sim.mutants.keeping_history import KEEPING_HISTORY
from tests.sim.mutants.keeping_order import KEEPING_ORDER
from tests.sim.mutants.keeping_places import KEEPING_PLACES
from tests.sim.mutants.keeping_time import KEEPING_TIME
from tests.sim.mutants.leaving_behind import LEAVING_BEHIND
from tests.sim.mutants.limiting import LIMITING
from tests.sim.mutants.meeting_damage import MEETING_DAMAGE
from tests.sim.mutants.permitting import PERMITTING
from tests.sim.mutants.placing import PLACING
from tests.sim.mutants.publishing_results import PUBLISHING_RESULTS
from tests.sim.mutants.remembering import REMEMBERING
from tests.sim.mutants.repeating import REPEATING
from tests.sim.mutants.serving import SERVING
from tests.sim.mutants.setting_aside import SETTING_ASIDE
from tests.sim.mutants.sharing_clients import SHARING_CLIENTS
from tests.sim.mutants.storing import STORING
from tests.sim.mutants.taking_over import TAKING_OVER
from tests.sim.mutants.talking import TALKING
from tests.sim.mutants.telling import TELLING

GROUPS: dict[str, list[Mutant]] = {
    "storing": STORING,
    "dispatching": DISPATCHING,
    "delaying": DELAYING,
    "holding": HOLDING,
    "keeping history": KEEPING_HISTORY,
    "keeping order": KEEPING_ORDER,
    "keeping places": KEEPING_PLACES,
    "keeping time": KEEPING_TIME,
    "talking": TALKING,
    "giving back": GIVING_BACK,
    "giving up": GIVING_UP,
    "placing": PLACING,
    "serving": SERVING,
    "taking over": TAKING_OVER,
    "counting": COUNTING,
    "setting aside": SETTING_ASIDE,
    "changing": CHANGING,
    "sharing clients": SHARING_CLIENTS,
    "limiting": LIMITING,
    "permitting": PERMITTING,
    "checking input": CHECKING_INPUT,
    "hearing strangers": HEARING_STRANGERS,
    "idling": IDLING,
    "meeting damage": MEETING_DAMAGE,
    "publishing results": PUBLISHING_RESULTS,
    "remembering": REMEMBERING,
    "telling": TELLING,
    "repeating": REPEATING,
    "leaving behind": LEAVING_BEHIND,
}
MUTANTS: list[Mutant] = [mutant for group in GROUPS.values() for mutant in group]
