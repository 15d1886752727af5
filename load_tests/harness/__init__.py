"""What every command shares: child processes, progress lines, result files, tables, statistics."""
