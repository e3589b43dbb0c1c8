"""The lowest versions: every requirement has one, and stands for it alone when the tests run with them."""

from __future__ import annotations

import pytest

from tests.hygiene.source import ROOT
from tools.lowest import lowest_versions

PROJECT = """
[project]
dependencies = ["numpy>=1.26,<3", "uvloop>=0.21,<1; sys_platform != 'win32'"]
[project.optional-dependencies]
spark = ["pyspark[sql]>=4.2,<5"]
all = ["example[spark]"]
"""


def test_requirements_stand_for_their_lowest_versions() -> None:
    assert lowest_versions(PROJECT) == ["numpy==1.26", "uvloop==0.21; sys_platform != 'win32'", "pyspark[sql]==4.2"]


def test_requirement_without_a_lowest_version_is_refused() -> None:
    with pytest.raises(ValueError, match="numpy<3 has no lowest version"):
        lowest_versions(PROJECT.replace("numpy>=1.26,<3", "numpy<3"))


def test_every_requirement_of_the_package_has_a_lowest_version() -> None:
    names = {pin.partition("==")[0].partition("[")[0] for pin in lowest_versions((ROOT / "pyproject.toml").read_text())}
    assert {"pyarrow", "ray", "pyspark", "boto3", "duckdb"} <= names
