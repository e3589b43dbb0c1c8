"""The fixtures for users' tests, in a project of their own."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

A_TEST_OF_A_USER = """
import sluice

def test_a_message_comes_back(sluice_client, sluice_topic):
    topic = sluice_topic(partitions=2)
    with sluice_client.create_producer(topic) as producer:
        producer.send(b"paid", partition_key="ada")
    consumer = sluice_client.subscribe(topic, "billing", initial_position="earliest")
    assert consumer.receive(timeout_millis=60_000).data() == b"paid"
"""
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
    pytester.makeconftest('pytest_plugins = "sluice.testing"')
    pytester.makepyfile(test_one=A_TEST_OF_A_USER, test_two=TWO_TOPICS)
    return pytester


def test_a_users_tests_have_brokers_of_their_own(project: pytest.Pytester) -> None:
    project.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=3)


def test_parallel_tests_have_brokers_of_their_own(project: pytest.Pytester) -> None:
    project.makepyfile(test_three=A_TEST_OF_A_USER, test_four=A_TEST_OF_A_USER)
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
