"""Tests of the etcd store on etcd itself."""
