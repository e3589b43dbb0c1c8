"""Rules for every test: only marked tests start Ray, and no configuration of the machine's user gets in."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.lanes import Lanes

# A run says the same twice, on a busy machine too. `--hypothesis-profile fresh` draws examples that nobody has seen.
settings.register_profile("fresh", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", parent=settings.get_profile("fresh"), derandomize=True)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: children would inherit it, and tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

for _name in [name for name in os.environ if name.startswith("SLUICE_")]:
    del os.environ[_name]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all`, which includes the tests that only a release runs."""
    parser.addoption("--all", action="store_true", dest="release", help="also run the tests marked `release`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that only a release runs, unless `--all` asks for them."""
    if config.getoption("release"):
        return
    left_out = [item for item in items if item.get_closest_marker("release")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("release")]


def pytest_collection_finish() -> None:
    """Freeze the objects that imports and collected tests made, so that the cycle collector skips them.

    This saves a tenth of the processor time of tests in the simulated world.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Return the scheduler that deals files by whether they start a cluster; see tests.lanes."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _no_ray_by_accident(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a test without the mark `ray` from a Ray cluster, which costs seconds and hides dependencies."""
    if request.node.get_closest_marker("ray") is not None:
        yield
        return
    ray = sys.modules.get("ray")
    if ray is not None:

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("this test starts Ray: mark it `ray`, or test the class without it")

        monkeypatch.setattr(ray, "init", refuse)
        assert not ray.is_initialized(), "an earlier test left Ray running"
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("this test started Ray without the mark `ray`")
