"""The log cleaner: rewrites closed segments so that only the newest record of each key is left."""
