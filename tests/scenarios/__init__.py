"""Golden conversations: short scripts that show how the actors talk, with the whole exchange as text."""
