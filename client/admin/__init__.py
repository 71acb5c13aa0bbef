"""The admin client, and its calls by what they are about."""
