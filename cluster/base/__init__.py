"""The base of a process: event loop, clock, threads, files, tokens, certificates, audit."""
