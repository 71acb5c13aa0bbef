"""One seed from its first draw to its verdict, and what it takes to run it again."""
