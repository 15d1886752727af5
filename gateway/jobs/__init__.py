"""From a request to a queued job, and the job as the API shows it."""
