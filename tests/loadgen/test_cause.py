"""Which line of a Spark error a person is shown."""

from __future__ import annotations

import pytest

from sluice.loadgen.spark.session import cause_of


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "publish.py", line 7, in run\nsluice.storage.errors.Unavailable: no bookie answers\n\n'
            "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n"
            "Caused by: java.io.EOFException: gone",
            "sluice.storage.errors.Unavailable: no bookie answers",
        ),
        ("KeyError: 'x'\nduring that\nTypeError: y", "TypeError: y"),
        ("something else", "something else"),
        ("", "RuntimeError"),
    ],
)
def test_the_last_python_error_is_shown(text: str, line: str) -> None:
    assert cause_of(RuntimeError(text)) == line
