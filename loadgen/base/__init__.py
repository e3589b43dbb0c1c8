"""The words of a load test: acts, histories, kinds of faults, generated messages, options."""
