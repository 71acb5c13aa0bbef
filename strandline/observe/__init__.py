"""What an operator sees of a node: health and metrics over HTTP.

The rooms below count in plain integers and know nothing of this package; it reads their state when somebody asks. It alone
imports aiohttp and prometheus_client.
"""
