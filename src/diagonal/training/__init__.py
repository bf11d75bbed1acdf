"""Training: one loop (`run`), and what it trains: a tokenizer, a world under any mixture of schedules, a judge."""
