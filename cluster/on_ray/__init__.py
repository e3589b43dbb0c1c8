"""The faces of Sluice inside a Ray program: a keyed queue, and datasets of Ray Data."""
