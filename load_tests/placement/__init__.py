"""What it saves to run a job where its prompt's prefix is cached, measured on a trace."""
