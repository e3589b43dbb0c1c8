"""The release of a version: its changelog, number, wheels, site, and the folder that later versions must open."""
