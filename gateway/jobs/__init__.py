"""From a request to a queued job, and a job as the API shows it."""
