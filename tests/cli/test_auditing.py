"""`audit`: which time a user may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:00-14:00", "yesterday", "9" * 39])
def test_a_time_that_no_calendar_has_is_the_callers(cli: Cli, tmp_path: Path, since: str) -> None:
    code, _, err = cli("audit", "--since", since, "--data-dir", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1), err
    assert "--since is 10m, 2h, 7d or a time like" in err
