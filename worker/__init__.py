"""The worker: claims jobs, runs them on an inference engine, publishes their output."""
