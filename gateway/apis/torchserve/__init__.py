"""TorchServe's inference and management calls."""
