"""All mutants, by the part of the broker that they break."""

from __future__ import annotations

from tools.mutants import Mutant
from tools.mutants.changing import CHANGING
from tools.mutants.checking_input import CHECKING_INPUT
from tools.mutants.counting import COUNTING
from tools.mutants.delaying import DELAYING
from tools.mutants.dispatching import DISPATCHING
from tools.mutants.giving_back import GIVING_BACK
from tools.mutants.giving_up import GIVING_UP
from tools.mutants.hearing_strangers import HEARING_STRANGERS
from tools.mutants.holding import HOLDING
from tools.mutants.idling import IDLING
from tools.mutants.joining_chunks import JOINING_CHUNKS
from tools.mutants.keeping_history import KEEPING_HISTORY
from tools.mutants.keeping_order import KEEPING_ORDER
from tools.mutants.keeping_places import KEEPING_PLACES
from tools.mutants.keeping_time import KEEPING_TIME
from tools.mutants.leaving_behind import LEAVING_BEHIND
from tools.mutants.limiting import LIMITING
from tools.mutants.meeting_damage import MEETING_DAMAGE
from tools.mutants.permitting import PERMITTING
from tools.mutants.placing import PLACING
from tools.mutants.publishing_results import PUBLISHING_RESULTS
from tools.mutants.remembering import REMEMBERING
from tools.mutants.repeating import REPEATING
from tools.mutants.replaying import REPLAYING
from tools.mutants.serving import SERVING
from tools.mutants.setting_aside import SETTING_ASIDE
from tools.mutants.sharing_clients import SHARING_CLIENTS
from tools.mutants.storing import STORING
from tools.mutants.taking_over import TAKING_OVER
from tools.mutants.talking import TALKING
from tools.mutants.telling import TELLING

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
    "replaying": REPLAYING,
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
    "joining chunks": JOINING_CHUNKS,
}
MUTANTS: list[Mutant] = [mutant for group in GROUPS.values() for mutant in group]
