"""Serving Produce, InitProducerId and DescribeProducers."""
