"""What exists: models and tokenizers by name, with their configs, licences and sources."""
