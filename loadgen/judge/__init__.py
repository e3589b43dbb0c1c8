"""The judge: it finds broken promises in recorded histories."""
