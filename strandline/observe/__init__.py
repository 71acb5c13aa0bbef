"""A node's health and metrics over HTTP.

The lower packages count in plain integers and do not import this one; it reads their state at each request. Only this
package imports aiohttp and prometheus_client.
"""
