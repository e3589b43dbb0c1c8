"""A log that does not fill its disk."""

from __future__ import annotations

import logging
from io import StringIO

from sluice.cluster.base.log_filter import MOST, WITHIN_S, FewOfEachKind
from sluice.cluster.base.real import log_to_stderr


def test_a_stranger_who_connects_for_ever_fills_no_disk() -> None:
    now = [0.0]
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(FewOfEachKind(lambda: now[0]))
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(handler)
    for number in range(MOST + 1_000):
        logger.warning("a connection was refused: %s", f"{number} is no {'%s'}")
    logger.error("something else happened")
    logger.info("a connection was refused: %s", "asked for")
    lines = out.getvalue().splitlines()
    assert len(lines) == MOST + 2
    assert lines[-2:] == ["something else happened", "a connection was refused: asked for"]
    now[0] = WITHIN_S
    logger.warning("a connection was refused: %s", "late")
    logger.warning("a connection was refused: %s", "later")
    assert out.getvalue().splitlines()[MOST + 2 :] == [
        "a connection was refused: late (1,000 more lines of this kind were left out)",
        "a connection was refused: later",
    ]


def test_the_log_of_a_process_is_filtered() -> None:
    logger = logging.getLogger("sluice")
    before = logger.handlers, logger.level
    logger.handlers = []
    try:
        log_to_stderr("warning")
        (handler,) = logger.handlers
        assert any(isinstance(each, FewOfEachKind) for each in handler.filters)
    finally:
        logger.handlers, logger.level = before
