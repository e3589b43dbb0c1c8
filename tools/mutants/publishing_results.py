"""Mutants of workers that publish results, and of the topics that store each once."""

from __future__ import annotations

from tools.mutants import Mutant

WORKERS = "workers"

PUBLISHING_RESULTS: list[Mutant] = [
    Mutant(
        name="scaled in before it finished",
        module="sluice.cluster.workers.result_loop",
        old="        return self._stopping and not self._plan.running\n",
        new="        return self._stopping\n",
        world=WORKERS,
        seed=26,
    ),
    Mutant(
        name="acknowledged before the output was confirmed",
        module="sluice.cluster.workers.result_loop",
        old="            self._steps.publish(publishing)\n",
        new="            self._steps.acknowledge(publishing)\n            self._steps.publish(publishing)\n",
        world=WORKERS,
        seed=2,
    ),
    Mutant(
        name="acknowledged when some of its results were confirmed",
        module="sluice.actors.producer.results",
        old="                messages[owner].left += 1\n",
        new="                messages[owner].left = 1\n",
        world=WORKERS,
        seed=7,
    ),
    Mutant(
        name="a key twice at once in one worker",
        module="sluice.cluster.workers.schedule",
        old="            if key not in self.running:\n",
        new="            if True:\n",
        world=WORKERS,
        seed=0,
    ),
    Mutant(
        name="results of what is under way are stored beside it",
        module="sluice.actors.topic.partition.result_intake",
        old="            if outcome is not None:\n                await outcome\n            elif stored.any():\n",
        new="            if stored.any():\n",
        world=WORKERS,
        seed=31,
    ),
    Mutant(
        name="a new owner does not look for results in the log",
        module="sluice.actors.topic.partition.managed_ledger",
        old="            self._producers.results.replay(header.producer, header.positions, self._ports.clock.now())\n",
        new="            pass\n",
        world=WORKERS,
        seed=15,
    ),
    Mutant(
        name="the record forgets which results are stored",
        module="sluice.actors.topic.partition.managed_ledger",
        old="        if self.record.results:\n",
        new="        if False:\n",
        world=WORKERS,
        seed=15,
    ),
    Mutant(
        name="more is forgotten than the subscription has finished",
        module="sluice.actors.topic.partition.results",
        old="            self.cursor.skip_to(finished + 1)\n",
        new="            self.cursor.skip_to(finished + 3)\n",
        world=WORKERS,
        seed=2,
    ),
]
