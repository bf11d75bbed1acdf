"""One file per tokenizer family: pixels to token ids and back."""
