"""The admin client, and its calls by subject."""
