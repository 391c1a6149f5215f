"""Data, models, training loop and reports of the example jobs and studies."""
