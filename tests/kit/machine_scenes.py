"""The scenes in which one machine of three is cut off or killed, while another one publishes and receives messages.

    isolate-head        the machine of Ray's head reaches nobody for a while, neither the other machines nor the store
    isolate-controller  the same, with the machine of the controller
    isolate-other       the same, with a machine that has neither of the two
    kill-head           everything that runs on the machine of Ray's head gets SIGKILL, and nobody starts it again

After the last one no command finds the cluster any more. `play` returns for each scene how long keys had to wait: for
a confirmation after the one before, and for a delivery after its confirmation.
"""

from __future__ import annotations

import time
from typing import Any

from tests.kit.machines import Machine
from tests.kit.site import Site, answered, await_actors, steady, typed

ISOLATE_HEAD, ISOLATE_CONTROLLER, ISOLATE_OTHER, KILL_HEAD = SCENES = (
    "isolate-head",
    "isolate-controller",
    "isolate-other",
    "kill-head",
)
BEFORE_S, AFTER_S, KILLED_S = 8.0, 12.0, 40.0
CUT_S = 25.0


def of_controller(site: Site) -> Machine:
    """Return the machine of the controller, by `status`."""
    (_, status) = site.page.lines("Sluice")
    told = answered(typed(site.first, f"{status} --json"))["controller_machine"]
    return next(machine for machine in site.all if machine.address == told)


def victim(site: Site, scene: str, controller: Machine) -> Machine:
    """Return the machine that a scene hits."""
    if scene == ISOLATE_CONTROLLER:
        return controller
    return site.first if scene != ISOLATE_OTHER else next(one for one in site.others if one is not controller)


def play(site: Site, scene: str) -> dict[str, Any]:
    """Play a scene, on a topic of its name, and return its figures.

    `at_cut_s`: the longest wait (seconds) that began before the heal, or since the kill. `at_heal_s`: the longest one
    after the heal. Both are 1 where no key waited longer.
    """
    typed(site.first, site.page.lines("Use it")[0].replace("orders", scene))
    controller = of_controller(site)
    hit = victim(site, scene, controller)
    where = next(machine for machine in reversed(site.all) if machine is not hit)
    end = steady(site, where, scene)
    await_actors(site)
    time.sleep(BEFORE_S)
    cut = time.monotonic()
    if scene == KILL_HEAD:
        hit.end_processes()
        heal = cut + KILLED_S
        time.sleep(KILLED_S)
    else:
        site.network.isolate(hit)
        time.sleep(CUT_S)
        heal = time.monotonic()
        site.network.heal()
        time.sleep(AFTER_S)
    told = end()
    began = told.pop("began")
    waits = told["waits_s"]
    return {
        "hit": hit.address,
        "controller": controller.address,
        **told,
        "cut_s": round(cut - began, 2),
        "heal_s": round(heal - began, 2),
        "at_cut_s": max((wait for at, wait in waits if at < heal - began), default=1.0),
        "at_heal_s": max((wait for at, wait in waits if at >= heal - began), default=1.0),
    }
