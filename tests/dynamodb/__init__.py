"""Tests of the DynamoDB adapter; most of them run on a DynamoDB Local."""
