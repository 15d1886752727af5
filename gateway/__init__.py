"""Everything that runs on CPUs: the HTTP edge, chores and the `flotilla` command."""
