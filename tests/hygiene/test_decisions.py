"""Each decision page has a number of its own, in its name and in its first line."""

from __future__ import annotations

from tests.hygiene.source import ROOT

PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))


def test_no_number_is_given_twice() -> None:
    numbers = [page.name[:4] for page in PAGES]
    assert numbers == sorted(set(numbers))


def test_the_first_line_has_the_number_of_the_name() -> None:
    for page in PAGES:
        assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]}: "), page.name
