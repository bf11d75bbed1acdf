"""Above one GPU: one model on several (`parallel`)."""
