"""What every command shares: child processes, result files, the machine's description, tables, figures."""
