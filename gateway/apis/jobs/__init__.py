"""Jobs: submit, list, follow, retry, and the job object."""
