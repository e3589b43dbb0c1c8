"""The ledger protocol: how an owner and its bookies keep a sequence of runs that is never lost and never forks."""
