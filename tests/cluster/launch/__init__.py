"""How the processes of a cluster start, find each other, and end."""
