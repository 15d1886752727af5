"""Output of the engine on its way to Redis: buffered per job, sent once per engine step."""
