"""What follows from a budget: what fits, what to change, why it crashed."""
