"""Scenarios of Key_Shared with the real actors in virtual time; each test has the ids of its scenarios in its name.

`docs/scenarios.md` says where each scenario is tested, and which have no counterpart here, and why.
"""
