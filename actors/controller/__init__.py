"""The controller: it starts actors, watches them, replaces the dead, and closes the idle."""
