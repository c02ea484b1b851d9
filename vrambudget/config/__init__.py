"""What a user hands in: a model, a job, a card; strict, and every mistake is named."""
