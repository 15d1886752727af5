"""What runs where the engine is: claim jobs, run them on vLLM, publish what comes out."""
