"""Models that embed texts: loaded, tokenised for, and asked in batches of tokens."""
