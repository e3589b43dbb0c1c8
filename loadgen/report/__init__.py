"""The report of a flood: tables, charts and the verdict."""
