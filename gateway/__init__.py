"""Everything that runs on CPUs: the HTTP edge, maintenance and the `flotilla` command."""
