"""From a request to a queued job, and from the job's log to the client."""
