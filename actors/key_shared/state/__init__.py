"""The state of Key_Shared and its transitions: window, hash tables, members, policies, sentinel."""
