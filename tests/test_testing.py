"""The fixtures for users' tests, in a project of their own."""

from __future__ import annotations

import pytest

from tests.test_readme import examples

pytest_plugins = "pytester"

NAMED, SHOWN = examples("docs/python-client.md")[1:3]
"""The page's `conftest.py`, and its test."""
TWO_TOPICS = """
import pathlib

def test_topics_have_names_of_their_own(sluice_client, sluice_topic):
    assert sluice_topic() != sluice_topic()

def test_a_broker_starts_empty(sluice_client):
    assert sluice_client.topics() == []
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project that names the fixtures, with two files of tests."""
    pytester.makeconftest(NAMED)
    pytester.makepyfile(test_one=SHOWN, test_two=TWO_TOPICS)
    return pytester


def test_a_users_tests_have_brokers_of_their_own(project: pytest.Pytester) -> None:
    project.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=3)


def test_parallel_tests_have_brokers_of_their_own(project: pytest.Pytester) -> None:
    project.makepyfile(test_three=SHOWN, test_four=SHOWN)
    project.runpytest_subprocess("-n", "2").assert_outcomes(passed=5)


def test_a_fixture_of_the_session_replaces_the_broker(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import pytest, sluice
        pytest_plugins = "sluice.testing"

        @pytest.fixture(scope="session")
        def sluice_client():
            with sluice.connect(embedded=True) as client:
                client.create_topic("of-the-session")
                yield client
    """)
    project.makepyfile(
        test_two="""
        def test_the_broker_is_there_already(sluice_client, sluice_topic):
            made = sluice_topic()
            assert sorted(one["topic"] for one in sluice_client.topics()) == sorted([made, "of-the-session"])
    """
    )
    project.runpytest_subprocess("-p", "no:xdist", "test_two.py").assert_outcomes(passed=1)


def test_a_run_without_the_fixtures_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_sluice_is_away():
            assert "sluice" not in sys.modules
    """)
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)
