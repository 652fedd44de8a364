"""The row formats of other clients, one file for each client: their locks and ours are then the same locks.

``awslabs``: the Java client; ``token_rows``: fencing tokens beside its rows; ``node``: the npm client, both modes; ``limits``: what the
rows of each have no place for.
"""
