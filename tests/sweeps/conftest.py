"""A Dask cluster in this process, for all tests of sweeps; what it is sent goes through sockets."""

import pytest


@pytest.fixture(scope="package")
def cluster():
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "protocol": "tcp://", "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster
